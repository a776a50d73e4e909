"""Compaction: one file for all chunks of a folder, so that a store of a million rows opens in seconds.

A compacted file is a copy that may be deleted at any time: chunk files stay, and stay the only ledger. It records the
modification time of the folder that it was made from. While that time is the same the reader takes the copy's word;
otherwise it lists the folder and reads the chunks that the copy does not have. Writers never look here, so compaction
may run while they append.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.store import files, listing
from orchestrator.store.index import GENERATION_FIELDS, GRADE_FIELDS, Index
from orchestrator.store.listing import Folder
from orchestrator.store.paths import StorePaths

# Part of the directory's name: a copy of another layout is never read.
LAYOUT = 1
_MADE_FROM = b"folder_modified"


@dataclass(frozen=True, slots=True)
class Copy:
    """A compacted folder; ages is None for grades. modified: the folder's time when it was made, nanoseconds."""

    rows: Path
    ages: Path | None
    modified: int


def place(paths: StorePaths, folder: Folder) -> Path:
    """Where the copy of a folder lies."""
    return paths.root / "compact" / f"v{LAYOUT}" / (folder.grader or "generations") / f"{folder.cell_id}.parquet"


def find(paths: StorePaths, folder: Folder) -> Copy | None:
    """The copy of a folder, or None where there is none that can be read."""
    rows = place(paths, folder)
    ages = None if folder.grader else _ages(rows)
    try:
        modified = int((pq.read_schema(rows).metadata or {})[_MADE_FROM])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    return Copy(rows, ages, modified)


def write(paths: StorePaths, index: Index, folder: Folder, modified: int) -> int:
    """Write the copy of a folder from what the reader holds of it; returns its rows. Raises OSError."""
    table = index.table(
        _query(folder), {"cell": folder.cell_id, **({"folder": folder.grader} if folder.grader else {})}
    )
    ages = None
    if not folder.grader:
        ages = index.table(
            "SELECT cell_id, sample, block, kept FROM ages JOIN cells USING (cell) WHERE cell_id = $cell",
            {"cell": folder.cell_id},
        )
    write_copy(paths, folder, table, ages, modified)
    return table.num_rows


def write_copy(paths: StorePaths, folder: Folder, table: pa.Table, ages: pa.Table | None, modified: int) -> None:
    """Write the files of a copy; ages are kept for generations only."""
    rows = place(paths, folder)
    if ages is not None and not folder.grader:
        files.replace(_ages(rows), files.table_writer(ages), paths.temporary)
    # The rows come last: they are what makes a copy.
    stamped = table.replace_schema_metadata({_MADE_FROM: str(modified)})
    files.replace(rows, files.table_writer(stamped), paths.temporary)


def wanted(paths: StorePaths, folder: Folder, modified: int) -> bool:
    """Whether a folder can be compacted now and its copy is not up to date."""
    copy = find(paths, folder)
    return listing.settled(modified) and (copy is None or copy.modified != modified)


def _ages(rows: Path) -> Path:
    return rows.with_name(f"{rows.stem}-ages.parquet")


def _query(folder: Folder) -> str:
    if folder.grader:
        columns = ", ".join(name for name in GRADE_FIELDS if name != "cell_id")
        return (
            f"SELECT $cell AS cell_id, block, {columns} FROM grades JOIN graders USING (grade) "
            "WHERE folder = $folder AND cell = (SELECT cell FROM cells WHERE cell_id = $cell) "
            "ORDER BY problem_id, sample"
        )
    return (
        f"SELECT {', '.join(GENERATION_FIELDS)} FROM generations JOIN cells USING (cell) JOIN origins USING (origin) "
        "WHERE cell_id = $cell ORDER BY problem_index, sample"
    )
