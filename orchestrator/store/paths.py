"""Where things lie in a store (orchestration.md section 3; contracts.md section 4 adds campaigns and grader names)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.chunks import ChunkId
from orchestrator.store import mirror

_CHUNK = re.compile(r"s(\d{4,})-b(\d{5,})\.parquet")
NO_JUDGE = "none"
SIDE_JUDGES = ("lcb-compat",)
"""Judges for comparison: a row's verdict is theirs only where no other judge has one."""


@dataclass(frozen=True, slots=True, order=True)
class GraderKey:
    """One version of one way to grade; its name is a directory, so regrading never touches older grades."""

    grader: str
    version: int
    judge: str = NO_JUDGE

    @property
    def name(self) -> str:
        """Directory below grades/: `reasoner-none-v1`. `-` and `/` of a judge become `_`."""
        judge = re.sub(r"[^A-Za-z0-9_.]", "_", self.judge)
        return f"{self.grader}-{judge}-v{self.version}"


@dataclass(frozen=True, slots=True)
class StorePaths:
    """Paths below one store's root; creates nothing in a local store. The root of a bucket is that of its copy here."""

    root: Path

    def __post_init__(self) -> None:
        """Raises UserError for a bucket whose copy has no place on this machine."""
        object.__setattr__(self, "root", mirror.local(self.root))

    @property
    def place(self) -> str:
        """How another process finds the store: its URL, or its absolute path."""
        found = mirror.of(self.root)
        return found.url if found is not None else str(self.root.resolve())

    @property
    def name(self) -> str:
        """How its user calls the store: its URL, or its directory as given."""
        found = mirror.of(self.root)
        return found.url if found is not None else str(self.root)

    @property
    def marker(self) -> Path:
        """The file that makes a directory a store."""
        return self.root / "store.json"

    @property
    def temporary(self) -> Path:
        """Files being written. On the store's own file system, since committing is a hard link."""
        return self.root / "tmp"

    @property
    def generations(self) -> Path:
        """One directory per cell, one file per committed chunk."""
        return self.root / "generations"

    @property
    def grades(self) -> Path:
        """One directory per grader version, then like generations."""
        return self.root / "grades"

    @property
    def campaigns(self) -> Path:
        """One directory per job name."""
        return self.root / "campaigns"

    def generation(self, chunk: ChunkId) -> Path:
        """The file whose existence is the commit of a chunk."""
        return self.generations / chunk.cell_id / f"{chunk.name}.parquet"

    def grade(self, grader: GraderKey, chunk: ChunkId) -> Path:
        """The grades of a chunk by one grader version."""
        return self.grades / grader.name / chunk.cell_id / f"{chunk.name}.parquet"

    def campaign(self, campaign_id: str) -> Path:
        """Job file, plan, attempts and control of one campaign."""
        return self.campaigns / campaign_id


def parse_chunk(path: Path) -> ChunkId | None:
    """The chunk a committed file holds, or None for any other name (editor backups, foreign files)."""
    match = _CHUNK.fullmatch(path.name)
    return ChunkId(path.parent.name, int(match[1]), int(match[2])) if match else None


def chunk_files(directory: Path, cell_ids: Iterable[str] | None = None) -> Iterator[tuple[ChunkId, Path]]:
    """Committed chunk files below `directory`/<cell_id>/, by name; of all cells when cell_ids is None.

    Of a store in a bucket the copy may lack a file that is named here: mirror.fetch brings it.
    """
    if (names := mirror.names(directory)) is not None:
        wanted = None if cell_ids is None else set(cell_ids)
        for path in names:
            if (chunk := parse_chunk(path)) is not None and (wanted is None or chunk.cell_id in wanted):
                yield chunk, path
        return
    for cell in _cell_directories(directory, cell_ids):
        try:
            entries = sorted(cell.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        for path in entries:
            chunk = parse_chunk(path)
            if chunk is not None:
                yield chunk, path


def _cell_directories(directory: Path, cell_ids: Iterable[str] | None) -> list[Path]:
    if cell_ids is not None:
        return [directory / cell_id for cell_id in cell_ids]
    return sorted(directory.iterdir()) if directory.is_dir() else []
