"""Reading: committed files only, through an in-memory DuckDB.

A store may be read while any number of workers write to it. A file that cannot be read (a torn copy, a bad disk) is
skipped, named and counted; one bad file would otherwise fail every query.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.errors import UserError, closest
from orchestrator.store import compact, listing, mirror
from orchestrator.store.campaign import Campaign
from orchestrator.store.index import CELL_COLUMNS as CELL_COLUMNS
from orchestrator.store.index import COUNTS_FIRST, GRADER_COLUMNS, ORIGIN_COLUMNS, ROW_COLUMNS, Change, nothing
from orchestrator.store.listing import Folder
from orchestrator.store.paths import StorePaths
from orchestrator.store.schema import COLD, GENERATIONS, GRADES, PLAN, READABLE, SCHEMA_VERSION
from orchestrator.store.writer import check_version

# Columns a grade adds to a row; null where the row has not been graded.
GRADE_COLUMNS = (
    "verdict",
    "lenient",
    "extracted",
    "grader",
    "judge",
    "grader_version",
    "grade_method",
    "grade_seconds",
    "graded_at",
)
COLUMNS = (*GENERATIONS.names, *GRADE_COLUMNS)
SCALARS = tuple(name for name in COLUMNS if name not in COLD)

# Where columns that are in memory come from; all others are read from the files.
_MEMORY = {
    "row_id": "c.cell_id || '/' || g.problem_id || '/' || g.sample",
    **{name: f"c.{name}" for name in CELL_COLUMNS},
    **{name: f"o.{name}" for name in ORIGIN_COLUMNS},
    **{name: f"g.{name}" for name in (*ROW_COLUMNS, "verdict", "lenient", "graded_at")},
    **{name: f"d.{name}" for name in GRADER_COLUMNS},
}
# Files read in one go: bounds what a first look at a store without compaction holds at once.
_FILES_AT_ONCE = 4096

_TABLES = {"generations": GENERATIONS, "grades": GRADES}

# Seeds and checksums use all 64 bits, and counts may be null: neither survives numpy's float64.
_PANDAS = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}

_HOT_ROWS = """
    SELECT {columns} FROM generations g JOIN cells c USING (cell) JOIN origins o USING (origin)
    LEFT JOIN graders d USING (grade) WHERE {condition} ORDER BY c.cell_label, c.cell_id, g.problem_index, g.sample
"""
# Older files lack nullable columns: an empty relation brings them.
_FILE_ROWS = f"""
    SELECT {{columns}} FROM (
        SELECT * FROM read_parquet($files, union_by_name = true) UNION ALL BY NAME {nothing(GENERATIONS)}
    ) AS g LEFT JOIN ({{grades}}) AS r USING (row_id)
    WHERE {{condition}} ORDER BY g.cell_label, g.cell_id, g.problem_index, g.sample
"""
_FILE_GRADES = f"""
    SELECT * FROM (SELECT * FROM read_parquet($grades, union_by_name = true) UNION ALL BY NAME {nothing(GRADES)})
    QUALIFY row_number() OVER (PARTITION BY row_id ORDER BY {COUNTS_FIRST}) = 1
"""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in any answer of the reader, and why."""

    path: Path
    reason: str


class Reader:
    """A read-only view of a store. Safe to share between threads; refresh() takes in what was committed since."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises UserError for a missing store and for another schema version."""
        self.paths = StorePaths(Path(path))
        check_version(self.paths)
        self._lock = threading.Lock()
        self._unsettled: set[Folder] = set()
        self._skipped: dict[Path, tuple[Skipped, Folder, tuple[int, int]]] = {}
        self.index, self._seen = compact.load(self.paths)
        self.refresh()

    def refresh(self) -> str:
        """Read files committed since the last call, forget deleted ones; returns the new generation key."""
        with self._lock:
            mirror.pull(self.paths.root)
            found = listing.folders(self.paths)
            mended = {folder for path, (_, folder, stamp) in self._skipped.items() if listing.stamp(path) != stamp}
            again = {folder for folder, time in found.items() if self._seen.get(folder) != time}
            vanished = self._seen.keys() - found.keys()
            changed = again | vanished | mended | (self._unsettled & found.keys())
            self._unsettled = {folder for folder in found if folder in changed and not listing.settled(found[folder])}
            by_cell: dict[str, list[Folder]] = {}
            for folder in sorted(changed):
                by_cell.setdefault(folder.cell_id, []).append(folder)
            waiting: list[Change] = []
            for mine in by_cell.values():
                waiting += [change for change in map(self._change, mine) if change.files or change.gone]
                if sum(len(change.files) for change in waiting) >= _FILES_AT_ONCE:
                    self._apply(waiting)
                    waiting = []
            self._apply(waiting)
            self._seen = found
            return self.generation_key

    @property
    def generation_key(self) -> str:
        """Changes when an answer of this reader may change: times of folders, plans, and files that were skipped."""
        plans = {path: listing.stamp(path) for path in sorted(self.paths.campaigns.glob("*/plan.parquet"))}
        folders = {folder.path: self._seen[folder] for folder in sorted(self._seen)}
        skipped = {path: self._skipped[path][2] for path in sorted(self._skipped)}
        digest = hashlib.blake2b(digest_size=8)
        for path, stamp in [*folders.items(), *plans.items(), *skipped.items()]:
            digest.update(f"{path}\0{stamp}\n".encode())
        return digest.hexdigest()

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Files that could not be read, by name."""
        return tuple(self._skipped[path][0] for path in sorted(self._skipped))

    def rows(self, columns: Sequence[str] = SCALARS, cells: Iterable[str] | None = None) -> pd.DataFrame:
        """Generations joined with their latest grade, ordered by cell, problem and sample.

        columns  names of COLUMNS; those that are not in memory are read from the files of the cells asked for
        cells    cell ids; None means all
        Rows without a grade have null grade columns. For sums over many rows use orchestrator.store.aggregates.
        Raises UserError for an unknown column. Integer and boolean columns have pandas' nullable dtypes.
        """
        for name in columns:
            if name not in COLUMNS:
                raise UserError(f"unknown column '{name}'.{closest(name, COLUMNS)} Columns: {', '.join(COLUMNS)}.")
        wanted = None if cells is None else list(cells)
        if set(columns) <= _MEMORY.keys():
            condition = "true" if wanted is None else "c.cell_id IN (SELECT unnest($cells))"
            listed = ", ".join(f"{_MEMORY[name]} AS {name}" for name in columns)
            query = _HOT_ROWS.format(columns=listed, condition=condition)
            return self.frame(query, {} if wanted is None else {"cells": wanted})
        files = self._chunk_files("generations", wanted)
        if not files:
            return pa.schema([_column(name) for name in columns]).empty_table().to_pandas(types_mapper=_PANDAS.get)
        return _frame(self._from_files(columns, files, self._chunk_files("grades", wanted)))

    def cells(self) -> pd.DataFrame:
        """One row per cell that has rows: CELL_COLUMNS, and rows, problems, graded, invalid, simulated, last_commit."""
        columns = ", ".join(f"c.{name}" for name in CELL_COLUMNS)
        return self.frame(
            f"SELECT {columns}, n.* EXCLUDE (cell) FROM cells c JOIN ("
            "SELECT cell, count(*) AS rows, count(DISTINCT problem_index) AS problems, count(verdict) AS graded, "
            "count(*) FILTER (status = 'invalid') AS invalid, bool_or(engine_kind = 'simulated') AS simulated, "
            "max(finished_at) AS last_commit FROM generations JOIN origins USING (origin) GROUP BY cell"
            ") n USING (cell) ORDER BY c.cell_label, c.cell_id"
        )

    def match(self, prefix: str, limit: int = 20) -> list[str]:
        """Row ids that start with `prefix`, at most `limit`, sorted."""
        row_id = _MEMORY["row_id"]
        found = self.index.table(
            f"SELECT {row_id} AS row_id FROM generations g JOIN cells c USING (cell) "
            "WHERE starts_with(c.cell_id, $cell) AND starts_with(row_id, $prefix) ORDER BY row_id LIMIT $limit",
            {"cell": prefix.partition("/")[0], "prefix": prefix, "limit": limit},
        )
        return [str(value) for value in found["row_id"].to_pylist()]

    def row(self, row_id: str) -> dict[str, Any]:
        """Every column of one row, text apart. Raises KeyError where the store has no such row."""
        return self._row(row_id, [name for name in COLUMNS if name != "text"])

    def transcript(self, row_id: str) -> str:
        """Generated text of one row, read from its file. Raises KeyError where the store has no such row."""
        return str(self._row(row_id, ["text"])["text"])

    def versions(self, cells: Iterable[str] | None = None) -> list[str]:
        """Distinct package versions of the engines that made the rows (canonical JSON each), sorted."""
        condition = "true" if cells is None else "cell_id IN (SELECT unnest($cells))"
        found = self.index.table(
            "SELECT DISTINCT versions FROM origins JOIN (SELECT DISTINCT cell, origin FROM generations) USING (origin) "
            f"JOIN cells USING (cell) WHERE {condition} ORDER BY versions",
            {} if cells is None else {"cells": list(cells)},
        )
        return [str(value) for value in found["versions"].to_pylist()]

    def campaigns(self) -> tuple[Campaign, ...]:
        """Campaigns with files in this store, by name."""
        directories = sorted(path for path in self.paths.campaigns.glob("*") if path.is_dir())
        return tuple(Campaign(self.paths, path.name) for path in directories)

    def plan(self, campaign_id: str | None = None) -> pd.DataFrame:
        """Planned cells (columns of PLAN) of one campaign, or of all: the largest numbers where they share a cell."""
        wanted = [c for c in self.campaigns() if campaign_id is None or c.campaign_id == campaign_id]
        table = pa.concat_tables([PLAN.empty_table(), *(campaign.plan() for campaign in wanted)])
        sizes = dict.fromkeys(("n_problems", "samples_min", "samples_max", "expected_tokens"), "max")
        first = dict.fromkeys(("cell_label", "comparison_id", "identity"), "first")
        return _frame(table).groupby("cell_id", as_index=False, sort=False).agg({**first, **sizes})[PLAN.names]

    def frame(self, query: str, parameters: dict[str, object] | None = None) -> pd.DataFrame:
        """A query over the tables of the index as a frame with pandas' nullable dtypes."""
        return _frame(self.index.table(query, parameters))

    def compact(self) -> int:
        """Copy what is in memory for the next reader; returns how many folders that have settled are new in the copy.

        Raises OSError.
        """
        with self._lock:
            bad = {folder for _, folder, _ in self._skipped.values()}
            sure = {f: t for f, t in self._seen.items() if f not in bad and listing.settled(t)}
            old = compact.covered(self.paths)
            new = sum(old.get(folder) != modified for folder, modified in sure.items())
            if new:
                times = {folder: sure.get(folder, compact.LIST_AGAIN) for folder in self._seen}
                compact.write(self.paths, self.index, times)
            return new

    def _change(self, folder: Folder) -> Change:
        listed, have = listing.chunks(folder), self.index.chunks(folder)
        for path in [path for path, (_, owner, _) in self._skipped.items() if owner == folder]:
            del self._skipped[path]
        new = [path for chunk, path in sorted(listed.items()) if chunk not in have]
        readable = [path for path in new if not self._skip(path, folder, _footer_problem(path, _TABLES[folder.table]))]
        return Change(folder, readable, sorted(have - listed.keys()))

    def _apply(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        try:
            self.index.apply(changes)
        except duckdb.Error:
            # Damage behind an intact footer; reading every file in full finds it, at a cost paid only now.
            sound = [self._sound(change) for change in changes]
            if sound == list(changes):
                raise
            self.index.apply(sound)

    def _sound(self, change: Change) -> Change:
        files = [path for path in change.files if not self._skip(path, change.folder, _data_problem(path))]
        return Change(change.folder, files, change.gone)

    def _skip(self, path: Path, folder: Folder, reason: str | None) -> bool:
        if reason is not None:
            self._skipped[path] = (Skipped(path, reason), folder, listing.stamp(path))
        return reason is not None

    def _chunk_files(self, table: str, cells: Sequence[str] | None) -> list[str]:
        folders = sorted(f for f in self._seen if f.table == table and (cells is None or f.cell_id in set(cells)))
        found = (path for folder in folders for _, path in sorted(listing.chunks(folder).items()))
        return [str(path) for path in found if path not in self._skipped]

    def _from_files(
        self, columns: Sequence[str], files: Sequence[str], grades: Sequence[str], row_id: str | None = None
    ) -> pa.Table:
        listed = ", ".join(f"{'r' if name in GRADE_COLUMNS else 'g'}.{name}" for name in columns)
        condition = "true" if row_id is None else "g.row_id = $id"
        parameters: dict[str, object] = {"files": list(files), **({} if row_id is None else {"id": row_id})}
        source = _FILE_GRADES
        if grades:
            parameters["grades"] = list(grades)
        else:
            source = nothing(GRADES)
        return self.index.table(_FILE_ROWS.format(columns=listed, grades=source, condition=condition), parameters)

    def _row(self, row_id: str, columns: Sequence[str]) -> dict[str, Any]:
        cell_id, _, rest = row_id.partition("/")
        problem, _, sample = rest.rpartition("/")
        found = self.index.table(
            "SELECT problem_index FROM generations JOIN cells USING (cell) "
            "WHERE cell_id = $cell AND problem_id = $problem AND sample::VARCHAR = $sample",
            {"cell": cell_id, "problem": problem, "sample": sample},
        ).to_pylist()
        if not found:
            raise KeyError(row_id)
        chunk = ChunkId(cell_id, int(sample), found[0]["problem_index"] // BLOCK)
        graders = sorted({folder.grader for folder in self._seen if folder.cell_id == cell_id and folder.grader})
        places = [self.paths.grades / grader / cell_id / f"{chunk.name}.parquet" for grader in graders]
        grades = [str(path) for path in places if path.exists() and path not in self._skipped]
        rows = self._from_files(columns, [str(self.paths.generation(chunk))], grades, row_id).to_pylist()
        return dict(rows[0])


def _frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS.get)
    return frame


def _column(name: str) -> pa.Field:
    return (GENERATIONS if name in GENERATIONS.names else GRADES).field(name)


def _footer_problem(path: Path, schema: pa.Schema) -> str | None:
    try:
        found = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        return f"no readable Parquet footer ({_first_line(error)})"
    version = (found.metadata or {}).get(b"schema_version", b"none").decode()
    if version not in map(str, READABLE):
        return f"schema version {version}, not {SCHEMA_VERSION}"
    for field in schema:
        place = found.get_field_index(field.name)
        if place < 0 and not field.nullable:
            return f"no column {field.name}"
        if place >= 0 and found.field(place).type != field.type:
            return f"column {field.name} is {found.field(place).type}, not {field.type}"
    return None


def _data_problem(path: Path) -> str | None:
    try:
        pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        return f"damaged data ({_first_line(error)})"
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
