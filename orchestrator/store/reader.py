"""Reading: committed files only, by an explicit list, through an in-memory DuckDB.

A store may be read while any number of workers write to it. A file that cannot be read (a torn copy, a bad disk) is
skipped, named and counted; one bad file would otherwise fail every query over the list.
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

from orchestrator.errors import UserError, closest
from orchestrator.store.campaign import Campaign
from orchestrator.store.paths import SIDE_JUDGES, StorePaths, chunk_files
from orchestrator.store.schema import COLD, GENERATIONS, GRADES, PLAN, SCHEMA_VERSION
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

# What does not vary within a cell.
CELL_COLUMNS = (
    "cell_id",
    "cell_label",
    "comparison_id",
    "model",
    "model_revision",
    "task",
    "task_revision",
    "policy",
    "policy_version",
    "policy_params",
    "keep",
    "interval",
    "recent",
    "protection",
    "n_sink",
    "overflow_mode",
    "temperature",
    "max_tokens",
)

_TABLES = {"generations": GENERATIONS, "grades": GRADES}

# Seeds and checksums use all 64 bits, and counts may be null: neither survives numpy's float64.
_PANDAS = {
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}

_ROWS = """
    SELECT {columns} FROM {source} AS g LEFT JOIN latest_grades AS r USING (row_id)
    WHERE {condition} ORDER BY g.cell_label, g.cell_id, g.problem_index, g.sample
"""
_NO_COLD_ROWS = """
    (SELECT *, NULL::VARCHAR AS text, NULL::BIGINT[] AS age_histogram, NULL::VARCHAR AS versions
     FROM generations LIMIT 0)
"""
_SIDE_JUDGES = "(" + ", ".join(f"'{judge}'" for judge in SIDE_JUDGES) + ")"
_LATEST = """
    CREATE VIEW latest_grades AS SELECT row_id, {columns} FROM grades
    QUALIFY row_number() OVER (
        PARTITION BY row_id ORDER BY judge IN {side_judges}, grader_version DESC, graded_at DESC
    ) = 1
"""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in any answer of the reader, and why."""

    path: Path
    reason: str


class Reader:
    """A read-only view of a store. Safe to share between threads; refresh() takes in what was committed since."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises UserError for a missing store and for another schema version; reads nothing else yet."""
        self.paths = StorePaths(Path(path))
        check_version(self.paths)
        self._lock = threading.Lock()
        self._listed: dict[Path, tuple[int, int]] = {}
        self._skipped: dict[Path, Skipped] = {}
        self._connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
        self._connection.execute("SET TimeZone = 'UTC'")
        for name, schema in _TABLES.items():
            hot = pa.schema([field for field in schema if field.name not in COLD])
            self._connection.register("empty", hot.empty_table())
            self._connection.execute(f"CREATE TABLE {name} AS SELECT *, '' AS file FROM empty")
            self._connection.unregister("empty")
        self._connection.execute(_LATEST.format(columns=", ".join(GRADE_COLUMNS), side_judges=_SIDE_JUDGES))
        self.refresh()

    def refresh(self) -> str:
        """Read files committed since the last call, forget deleted ones; returns the new generation key."""
        with self._lock:
            found = {path: _stamp(path) for path in self._files()}
            gone = [path for path, stamp in self._listed.items() if found.get(path) != stamp]
            new = [path for path, stamp in found.items() if self._listed.get(path) != stamp]
            for path in gone:
                self._skipped.pop(path, None)
            cursor = self._connection.cursor()
            for table in _TABLES:
                self._load(cursor, table, [path for path in new if path.is_relative_to(self.paths.root / table)])
            # One transaction, so that no other thread sees a generation without its grade or half of a refresh.
            cursor.execute("BEGIN")
            for table in _TABLES:
                cursor.execute(f"DELETE FROM {table} WHERE file IN (SELECT unnest(?))", [[str(path) for path in gone]])
                cursor.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming_{table}")
            cursor.execute("COMMIT")
            self._listed = found
            return self.generation_key

    @property
    def generation_key(self) -> str:
        """Changes exactly when an answer of this reader may change: file names, sizes, times, and the plans."""
        plans = {path: _stamp(path) for path in sorted(self.paths.campaigns.glob("*/plan.parquet"))}
        digest = hashlib.blake2b(digest_size=8)
        for path, stamp in {**self._listed, **plans}.items():
            digest.update(f"{path}\0{stamp}\n".encode())
        return digest.hexdigest()

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Files that could not be read, by name."""
        return tuple(self._skipped[path] for path in sorted(self._skipped))

    def rows(self, columns: Sequence[str] = SCALARS, cells: Iterable[str] | None = None) -> pd.DataFrame:
        """Generations joined with their latest grade, ordered by cell, problem and sample.

        columns  names of COLUMNS; `text` and other COLD columns are read from the files of the cells asked for
        cells    cell ids; None means all
        Rows without a grade have null grade columns.
        Raises UserError for an unknown column. Integer and boolean columns have pandas' nullable dtypes.
        """
        for name in columns:
            if name not in COLUMNS:
                raise UserError(f"unknown column '{name}'.{closest(name, COLUMNS)} Columns: {', '.join(COLUMNS)}.")
        wanted = None if cells is None else list(cells)
        source = "generations"
        parameters: dict[str, object] = {}
        if not COLD.isdisjoint(columns):
            listed = self._generation_files(wanted)
            source = "read_parquet($files, union_by_name = true)" if listed else _NO_COLD_ROWS
            parameters.update({"files": [str(path) for path in listed]} if listed else {})
        condition = "true"
        if wanted is not None:
            condition = "g.cell_id IN (SELECT unnest($cells))"
            parameters["cells"] = wanted
        query = _ROWS.format(columns=_select(columns), source=source, condition=condition)
        return self._frame(query, parameters)

    def cells(self) -> pd.DataFrame:
        """One row per cell that has rows: CELL_COLUMNS, and rows, problems, graded, invalid, simulated, last_commit."""
        constant = ", ".join(f"any_value({name}) AS {name}" for name in CELL_COLUMNS if name != "cell_id")
        return self._frame(
            f"SELECT cell_id, {constant}, count(*) AS rows, count(DISTINCT problem_id) AS problems, "
            "count(verdict) AS graded, count(*) FILTER (status = 'invalid') AS invalid, "
            "bool_or(engine_kind = 'simulated') AS simulated, max(finished_at) AS last_commit "
            "FROM generations LEFT JOIN latest_grades USING (row_id) GROUP BY cell_id ORDER BY cell_label, cell_id"
        )

    def match(self, prefix: str, limit: int = 20) -> list[str]:
        """Row ids that start with `prefix`, at most `limit`, sorted."""
        found = self._frame(
            "SELECT row_id FROM generations WHERE starts_with(row_id, $prefix) ORDER BY row_id LIMIT $limit",
            {"prefix": prefix, "limit": limit},
        )
        return [str(value) for value in found["row_id"]]

    def row(self, row_id: str) -> dict[str, Any]:
        """Every column of one row, text apart. Raises KeyError where the store has no such row."""
        return self._row(row_id, [name for name in COLUMNS if name != "text"])

    def transcript(self, row_id: str) -> str:
        """Generated text of one row, read from its file. Raises KeyError where the store has no such row."""
        return str(self._row(row_id, ["text"])["text"])

    def versions(self, cells: Iterable[str] | None = None) -> list[str]:
        """Distinct package versions of the engines that made the rows (canonical JSON each), sorted."""
        listed = self._generation_files(None if cells is None else list(cells))
        if not listed:
            return []
        query = "SELECT DISTINCT versions FROM read_parquet($files, union_by_name = true) ORDER BY versions"
        return [str(value) for value in self._frame(query, {"files": [str(path) for path in listed]})["versions"]]

    def campaigns(self) -> tuple[Campaign, ...]:
        """Campaigns with files in this store, by name."""
        directories = sorted(path for path in self.paths.campaigns.glob("*") if path.is_dir())
        return tuple(Campaign(self.paths, path.name) for path in directories)

    def plan(self, campaign_id: str | None = None) -> pd.DataFrame:
        """Planned cells (columns of PLAN) of one campaign, or of all: the largest numbers where they share a cell."""
        wanted = [c for c in self.campaigns() if campaign_id is None or c.campaign_id == campaign_id]
        table = pa.concat_tables([PLAN.empty_table(), *(campaign.plan() for campaign in wanted)])
        frame = table.to_pandas(types_mapper=_PANDAS.get)
        sizes = dict.fromkeys(("n_problems", "samples_min", "samples_max", "expected_tokens"), "max")
        first = dict.fromkeys(("cell_label", "comparison_id", "identity"), "first")
        return frame.groupby("cell_id", as_index=False, sort=False).agg({**first, **sizes})[PLAN.names]

    def _files(self) -> list[Path]:
        directories = [self.paths.generations]
        if self.paths.grades.is_dir():
            directories += sorted(path for path in self.paths.grades.iterdir() if path.is_dir())
        return [path for directory in directories for _, path in chunk_files(directory)]

    def _generation_files(self, cells: Sequence[str] | None) -> list[Path]:
        good = (path for path in self._listed if path not in self._skipped)
        found = (path for path in good if path.parent.parent == self.paths.generations)
        return [path for path in found if cells is None or path.parent.name in set(cells)]

    def _load(self, cursor: duckdb.DuckDBPyConnection, table: str, paths: Sequence[Path]) -> None:
        """Fill incoming_<table> from the readable ones of `paths`; the others are added to the skipped."""
        schema = _TABLES[table]
        readable = [path for path in paths if not self._skip(path, _footer_problem(path, schema))]
        empty = f"CREATE OR REPLACE TEMP TABLE incoming_{table} AS SELECT * FROM {table} LIMIT 0"
        listed = ", ".join(f"'{name}'" for name in schema.names if name not in COLD)
        insert = (
            f"INSERT INTO incoming_{table} BY NAME SELECT COLUMNS(lambda name: name IN ({listed})), filename AS file "
            "FROM read_parquet($files, union_by_name = true, filename = true)"
        )
        cursor.execute(empty)
        if not readable:
            return
        try:
            cursor.execute(insert, {"files": [str(path) for path in readable]})
        except duckdb.Error:
            # Damage behind an intact footer; reading every file in full finds it, at a cost paid only now.
            sound = [path for path in readable if not self._skip(path, _data_problem(path))]
            if len(sound) == len(readable):
                raise
            cursor.execute(empty)
            if sound:
                cursor.execute(insert, {"files": [str(path) for path in sound]})

    def _skip(self, path: Path, reason: str | None) -> bool:
        if reason is not None:
            self._skipped[path] = Skipped(path, reason)
        return reason is not None

    def _row(self, row_id: str, columns: Sequence[str]) -> dict[str, Any]:
        where = "SELECT file FROM generations WHERE row_id = $id"
        found = self._table(where, {"id": row_id}).to_pylist()
        if not found:
            raise KeyError(row_id)
        query = _ROWS.format(columns=_select(columns), source="read_parquet($files)", condition="g.row_id = $id")
        row: dict[str, Any] = self._table(query, {"files": [found[0]["file"]], "id": row_id}).to_pylist()[0]
        return row

    def _frame(self, query: str, parameters: dict[str, object] | None = None) -> pd.DataFrame:
        frame: pd.DataFrame = self._table(query, parameters).to_pandas(types_mapper=_PANDAS.get)
        return frame

    def _table(self, query: str, parameters: dict[str, object] | None = None) -> pa.Table:
        return self._connection.cursor().sql(query, params=parameters or {}).to_arrow_table()


def _select(columns: Sequence[str]) -> str:
    return ", ".join(f"{'r' if name in GRADE_COLUMNS else 'g'}.{name}" for name in columns)


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of a file; a file that has just been removed has neither."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)


def _footer_problem(path: Path, schema: pa.Schema) -> str | None:
    try:
        found = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        return f"no readable Parquet footer ({_first_line(error)})"
    version = (found.metadata or {}).get(b"schema_version", b"none").decode()
    if version != str(SCHEMA_VERSION):
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
