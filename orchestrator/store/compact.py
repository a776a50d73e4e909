"""Compaction: a copy of the reader's memory in one file, so that a store of a million rows opens in a second.

The copy is a DuckDB file that may be deleted at any time: chunk files stay, and stay the only ledger. It records the
modification time that every folder had when it was read. While that time is the same the reader takes the copy's word;
otherwise it lists the folder and reads the chunks that the copy does not have. Writers never look here, so compaction
may run while they append.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

from orchestrator.store import files
from orchestrator.store.index import Index
from orchestrator.store.listing import Folder
from orchestrator.store.paths import StorePaths

# Part of the directory's name: a copy of another layout is never read.
LAYOUT = 2
# Time of a folder that must be listed again: it was still changing, or a file of it could not be read.
LIST_AGAIN = 0


def place(paths: StorePaths) -> Path:
    """Where the copy lies."""
    return paths.root / "compact" / f"v{LAYOUT}" / "index.duckdb"


def load(paths: StorePaths) -> tuple[Index, dict[Folder, int]]:
    """The index that was copied and the times of its folders; an empty one where no copy can be read."""
    index = Index()
    path = place(paths)
    if not path.exists():
        return index, {}
    try:
        return index, _times(paths, index.load(path))
    except duckdb.Error:
        # A damaged copy is no loss: the chunks are there. Half of it may be in this index already.
        return Index(), {}


def covered(paths: StorePaths) -> dict[Folder, int]:
    """Times of the folders whose rows are in the copy; none where no copy can be read."""
    try:
        return _times(paths, Index.folders(place(paths))) if place(paths).exists() else {}
    except duckdb.Error:
        return {}


def write(paths: StorePaths, index: Index, times: Mapping[Folder, int]) -> None:
    """Copy an index that holds these folders. Raises OSError."""
    table = pa.table(
        {
            "cell_id": [folder.cell_id for folder in times],
            "grader": [folder.grader for folder in times],
            "modified": pa.array(times.values(), pa.int64()),
        }
    )
    try:
        files.replace(place(paths), lambda draft: index.save(draft, table), paths.temporary)
    except duckdb.IOException as error:
        raise OSError(str(error)) from error


def _times(paths: StorePaths, table: pa.Table) -> dict[Folder, int]:
    found = {}
    for row in table.to_pylist():
        above = paths.grades / row["grader"] if row["grader"] else paths.generations
        found[Folder(row["cell_id"], row["grader"], above / row["cell_id"])] = int(row["modified"])
    return found
