"""Where things lie in a store (orchestration.md section 3; contracts.md section 4 adds campaigns and grader names)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.chunks import ChunkId

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
    """Paths below one store's root; creates nothing."""

    root: Path

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
    """Committed chunk files below `directory`/<cell_id>/, by name; of all cells when cell_ids is None."""
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
