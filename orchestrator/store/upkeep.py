"""Moving whole cells between stores, and taking them out: merge and prune. Rows are never rewritten."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.chunks import ChunkId
from orchestrator.store import files, mirror
from orchestrator.store.campaign import Campaign
from orchestrator.store.paths import StorePaths, chunk_files


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did, in chunks, grade files and campaigns; `kept` were in the target already and stayed as they are.

    foreign  grades left behind because the target holds other rows of their chunk than the source
    """

    chunks: int
    kept: int
    grades: int
    foreign: int
    campaigns: int


def merge(source: StorePaths, target: StorePaths) -> Merged:
    """Copy what `target` lacks. Interrupted, the same call goes on; run twice, the second does nothing.

    A chunk that both hold stays the target's: both are valid rows of one cell, and rows of two attempts never mix. Its
    grades are copied only where the rows are byte for byte the same, since a grade belongs to a text.
    Campaigns are copied where the target has none of that name. Raises OSError, and UserError for a silent bucket.
    """
    for paths in (source, target):
        mirror.pull(paths.root)
    chunks = kept = grades = foreign = 0
    for chunk, path in chunk_files(source.generations):
        made = _copy(path, target.generation(chunk), target)
        chunks, kept = chunks + made, kept + (not made)
    same: dict[ChunkId, bool] = {}
    for grader in _subdirectories(source.grades):
        for chunk, path in chunk_files(grader):
            if chunk not in same:
                same[chunk] = _equal(source.generation(chunk), target.generation(chunk))
            if not same[chunk]:
                foreign += 1
                continue
            grades += _copy(path, target.grades / grader.name / chunk.cell_id / path.name, target)
    campaigns = sum(_copy_campaign(directory, target) for directory in _subdirectories(source.campaigns))
    return Merged(chunks, kept, grades, foreign, campaigns)


def cells_of(campaign: Campaign) -> set[str]:
    """Cells that a campaign planned when it was submitted last."""
    return set(campaign.plan()["cell_id"].to_pylist())


def used_elsewhere(paths: StorePaths, campaign_id: str) -> set[str]:
    """Cells that any other campaign of the store plans."""
    others = (path.name for path in _subdirectories(paths.campaigns) if path.name != campaign_id)
    return {cell for other in others for cell in cells_of(Campaign(paths, other))}


def sizes(paths: StorePaths, cell_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Chunks and bytes of generations and grades, by cell."""
    mirror.pull(paths.root)
    found = {}
    for cell_id in cell_ids:
        chunks = [path for _, path in chunk_files(paths.generations, [cell_id])]
        graded = [path for grader in _subdirectories(paths.grades) for _, path in chunk_files(grader, [cell_id])]
        found[cell_id] = len(chunks), sum(path.stat().st_size for path in (*chunks, *graded))
    return found


def prune(paths: StorePaths, cell_ids: Sequence[str], campaign_id: str | None = None) -> None:
    """Delete cells with their grades, then the campaign's files if one is named. Raises OSError.

    Grades go first and rows last, cell by cell: whenever it is interrupted, what is left is a store that resumes, and
    the same call goes on. Each directory is renamed away before it is deleted, so that readers see all of it or none; a
    bucket cannot rename, so that there readers may see a cell with fewer chunks meanwhile.
    """
    for cell_id in cell_ids:
        for grader in _subdirectories(paths.grades):
            _remove(grader / cell_id, paths)
        _remove(paths.generations / cell_id, paths)
    if campaign_id is not None:
        _remove(paths.campaign(campaign_id), paths)


def _remove(directory: Path, paths: StorePaths) -> None:
    if (bucket := mirror.of(directory)) is not None:
        bucket.remove(directory)
    if not directory.is_dir():
        return
    grave = paths.temporary / f"pruned-{directory.parent.name}-{directory.name}"
    paths.temporary.mkdir(exist_ok=True)
    shutil.rmtree(grave, ignore_errors=True)
    directory.rename(grave)
    shutil.rmtree(grave)


def _copy(path: Path, target: Path, store: StorePaths) -> bool:
    def write(draft: Path) -> None:
        shutil.copyfile(path, draft)

    return not target.exists() and files.create_if_absent(target, write, store.temporary)


def _copy_campaign(directory: Path, target: StorePaths) -> bool:
    there = target.campaign(directory.name)
    if there.exists():
        return False
    for path in sorted(directory.rglob("*")):
        # What runs and what was asked of it belongs to the other store's drivers.
        if path.is_file() and path.relative_to(directory).parts[0] not in ("live", "drivers", "control.json"):
            _copy(path, there / path.relative_to(directory), target)
    return True


def _equal(first: Path, second: Path) -> bool:
    try:
        return first.read_bytes() == second.read_bytes()
    except FileNotFoundError:
        return False


def _subdirectories(directory: Path) -> Iterator[Path]:
    if directory.is_dir():
        yield from sorted(path for path in directory.iterdir() if path.is_dir())
