"""The reader's memory: one narrow row per generation, and every name once.

A million rows fit into a few hundred megabytes because what is the same for a cell, an engine or a grader is kept in a
small table of its own, and what few views need (texts, seeds, checksums, histograms of single rows) stays in the files.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from orchestrator.chunks import BLOCK
from orchestrator.store.listing import Folder
from orchestrator.store.paths import SIDE_JUDGES
from orchestrator.store.schema import GENERATIONS, GRADES
from workers.api import AGE_BINS

# What does not vary within a cell.
CELL_COLUMNS = (
    "cell_id", "cell_label", "comparison_id", "model", "model_revision", "task", "task_revision", "policy",
    "policy_version", "policy_params", "keep", "interval", "recent", "protection", "n_sink", "overflow_mode",
    "temperature", "max_tokens",
)  # fmt: skip
# What does not vary within an engine process.
ORIGIN_COLUMNS = (
    "engine_id", "engine_kind", "gpu", "node", "runner", "graph_mode", "versions", "git_revision",
)  # fmt: skip
# What is in memory for every row.
ROW_COLUMNS = (
    "problem_id", "problem_index", "sample", "attempt", "status", "finish_reason", "n_prompt", "n_output",
    "n_reasoning", "ttft_seconds", "e2e_seconds", "decode_tokens_per_second", "num_preemptions", "events",
    "expected_events", "prompt_kept_min", "prompt_kept_mean", "cached_peak", "cached_mean", "overflow", "concurrency",
    "finished_at",
)  # fmt: skip
GRADER_COLUMNS = ("grader", "judge", "grader_version")
GRADE_COLUMNS = ("verdict", "lenient", "graded_at")

# What is read of every file, beside the histograms, which are summed by chunk.
GENERATION_FIELDS = (*CELL_COLUMNS, *ORIGIN_COLUMNS, *ROW_COLUMNS)
GRADE_FIELDS = ("cell_id", "problem_id", "sample", *GRADER_COLUMNS, *GRADE_COLUMNS)

_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint64(): "UBIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.list_(pa.int64()): "BIGINT[]",
}
SUMS = ", ".join(f"coalesce(sum(age_histogram[{place + 1}]), 0)::BIGINT" for place in range(AGE_BINS))

_TABLES = ("cells", "origins", "graders", "generations", "grades", "ages")

Chunk = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one folder.

    files  new chunk files; gone: (sample, block) of chunks that are no longer there
    """

    folder: Folder
    files: Sequence[Path] = ()
    gone: Sequence[Chunk] = ()


class Index:
    """DuckDB in memory. Queries from any thread; one thread at a time applies changes."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:", config={"autoinstall_known_extensions": False})
        self._connection.execute("SET TimeZone = 'UTC'")
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()
        run = self._connection.execute
        run(f"CREATE TABLE cells (cell INTEGER, {_declared(CELL_COLUMNS)})")
        run(f"CREATE TABLE origins (origin INTEGER, {_declared(ORIGIN_COLUMNS)})")
        run(f"CREATE TABLE graders (grade INTEGER, folder VARCHAR, {_declared(GRADER_COLUMNS)})")
        row = f"cell INTEGER, origin INTEGER, {_declared(ROW_COLUMNS)}"
        run(f"CREATE TABLE generations ({row}, grade INTEGER, {_declared(GRADE_COLUMNS)})")
        run(f"CREATE TABLE grades (cell INTEGER, grade INTEGER, block INTEGER, problem_id VARCHAR, sample INTEGER, "
            f"{_declared(GRADE_COLUMNS)})")  # fmt: skip
        run("CREATE TABLE ages (cell INTEGER, sample INTEGER, block INTEGER, kept BIGINT[])")

    def table(self, query: str, parameters: dict[str, object] | None = None) -> pa.Table:
        """Result of one query."""
        return self._connection.cursor().sql(query, params=parameters or {}).to_arrow_table()

    def chunks(self, folder: Folder) -> set[Chunk]:
        """(sample, block) of every chunk in memory of one folder."""
        cell = self._numbers.get(folder.cell_id)
        query = f"SELECT DISTINCT sample, problem_index // {BLOCK} FROM generations WHERE cell = $cell"
        parameters: dict[str, object] = {"cell": cell}
        if folder.grader:
            query = "SELECT DISTINCT sample, block FROM grades JOIN graders USING (grade) WHERE cell = $cell "
            query += "AND folder = $folder"
            parameters["folder"] = folder.grader
        return set(self._connection.cursor().execute(query, parameters).fetchall()) if cell is not None else set()

    def save(self, path: Path, folders: pa.Table) -> None:
        """Copy all tables, and one of the folders that are in them, into a new DuckDB file. Raises duckdb.Error."""
        with self._lock:
            cursor = self._connection.cursor()
            cursor.execute(f"ATTACH '{_quoted(str(path))}' AS copy")
            try:
                cursor.register("folders", folders)
                cursor.register("numbers", self._numbering())
                for name in (*_TABLES, "folders", "numbers"):
                    cursor.execute(f"CREATE TABLE copy.{name} AS FROM {name}")
                cursor.unregister("folders")
                cursor.unregister("numbers")
            finally:
                cursor.execute("DETACH copy")

    def load(self, path: Path) -> pa.Table:
        """Fill an empty index from a file that save wrote; returns its folders. Raises duckdb.Error."""
        with self._lock, _attached(self._connection.cursor(), path) as cursor:
            for name in _TABLES:
                cursor.execute(f"INSERT INTO {name} BY NAME FROM copy.{name}")
            numbers = cursor.execute("SELECT cell_id, cell FROM copy.numbers").fetchall()
            self._numbers = {str(cell_id): int(cell) for cell_id, cell in numbers}
            return cursor.sql("FROM copy.folders").to_arrow_table()

    @staticmethod
    def folders(path: Path) -> pa.Table:
        """The folders of a file that save wrote. Raises duckdb.Error."""
        with duckdb.connect(":memory:") as connection, _attached(connection, path) as cursor:
            return cursor.sql("FROM copy.folders").to_arrow_table()

    def apply(self, changes: Sequence[Change]) -> None:
        """Take in changes of a few cells at once: all of them or, on duckdb.Error, none.

        Generations and grades of a cell belong into one call, so that no reader sees one without the other.
        """
        with self._lock:
            for change in changes:
                self._numbers.setdefault(change.folder.cell_id, len(self._numbers))
            cursor = self._connection.cursor()
            # Files first and outside the transaction, since a file that cannot be read would end it.
            mine = [change for change in changes if not change.folder.grader]
            _read(cursor, "incoming", GENERATIONS, (*GENERATION_FIELDS, "age_histogram"), mine)
            cursor.execute(_INCOMING_AGES)
            folders = sorted({change.folder.grader for change in changes if change.folder.grader})
            for place, folder in enumerate(folders):
                graded = [change for change in changes if change.folder.grader == folder]
                _read(cursor, f"incoming_{place}", GRADES, GRADE_FIELDS, graded)
            cursor.execute("BEGIN")
            try:
                self._merge(cursor, changes, folders)
                cursor.execute("COMMIT")
            except duckdb.Error:
                cursor.execute("ROLLBACK")
                raise

    def _merge(self, cursor: duckdb.DuckDBPyConnection, changes: Sequence[Change], folders: Sequence[str]) -> None:
        touched = sorted({self._numbers[change.folder.cell_id] for change in changes})
        cursor.register("names", self._numbering())
        for change in changes:
            self._forget(cursor, change)
        origins, row = ", ".join(ORIGIN_COLUMNS), ", ".join(f"i.{name}" for name in ROW_COLUMNS)
        cursor.execute(_NEW_NAMES.format(table="origins", key="origin", columns=origins, source="incoming"))
        cells = ", ".join(f"any_value({name})" for name in CELL_COLUMNS if name != "cell_id")
        cursor.execute(
            f"INSERT INTO cells SELECT cell, cell_id, {cells} FROM incoming JOIN names USING (cell_id) "
            "WHERE cell NOT IN (SELECT cell FROM cells) GROUP BY cell, cell_id"
        )
        for place, folder in enumerate(folders):
            self._insert_grades(cursor, f"incoming_{place}", folder)
        cursor.execute(_BEST, {"cells": touched})
        same_origin = " AND ".join(f"i.{name} = o.{name}" for name in ORIGIN_COLUMNS)
        cursor.execute(_UPDATE)
        cursor.execute(
            f"INSERT INTO generations SELECT n.cell, o.origin, {row}, b.grade, b.verdict, b.lenient, b.graded_at "
            f"FROM incoming i JOIN names n USING (cell_id) JOIN origins o ON {same_origin} "
            "LEFT JOIN best b ON b.cell = n.cell AND b.problem_id = i.problem_id AND b.sample = i.sample"
        )
        cursor.execute(
            "INSERT INTO ages SELECT cell, sample, block, kept FROM incoming_ages JOIN names USING (cell_id)"
        )
        cursor.unregister("names")

    def _numbering(self) -> pa.Table:
        return pa.table({"cell_id": list(self._numbers), "cell": pa.array(self._numbers.values(), pa.int32())})

    def _insert_grades(self, cursor: duckdb.DuckDBPyConnection, source: str, folder: str) -> None:
        columns = ", ".join(GRADER_COLUMNS)
        named = f"(SELECT '{_quoted(folder)}' AS folder, * FROM {source})"
        cursor.execute(_NEW_NAMES.format(table="graders", key="grade", columns=f"folder, {columns}", source=named))
        same = " AND ".join(f"i.{name} = d.{name}" for name in GRADER_COLUMNS)
        cursor.execute(
            "INSERT INTO grades SELECT n.cell, d.grade, i.block, i.problem_id, i.sample, i.verdict, i.lenient, "
            f"i.graded_at FROM {source} i JOIN names n USING (cell_id) JOIN graders d ON {same} AND d.folder = $folder",
            {"folder": folder},
        )

    def _forget(self, cursor: duckdb.DuckDBPyConnection, change: Change) -> None:
        if not change.gone:
            return
        gone = pa.table({"sample": pa.array([c[0] for c in change.gone], pa.int32()),
                         "block": pa.array([c[1] for c in change.gone], pa.int32())})  # fmt: skip
        cursor.register("gone", gone)
        cell = {"cell": self._numbers[change.folder.cell_id]}
        listed = "IN (SELECT sample, block FROM gone)"
        by_index = f"cell = $cell AND (sample, problem_index // {BLOCK}) {listed}"
        if change.folder.grader:
            folder = "grade IN (SELECT grade FROM graders WHERE folder = $folder)"
            where = f"cell = $cell AND (sample, block) {listed} AND {folder}"
            cursor.execute(f"DELETE FROM grades WHERE {where}", {**cell, "folder": change.folder.grader})
            cursor.execute(
                "UPDATE generations SET grade = NULL, verdict = NULL, lenient = NULL, graded_at = NULL "
                f"WHERE {by_index}",
                cell,
            )
        else:
            cursor.execute(f"DELETE FROM generations WHERE {by_index}", cell)
            cursor.execute(f"DELETE FROM ages WHERE cell = $cell AND (sample, block) {listed}", cell)
        cursor.unregister("gone")


_INCOMING_AGES = f"""
    CREATE OR REPLACE TEMP TABLE incoming_ages AS SELECT cell_id, sample, problem_index // {BLOCK} AS block,
    [{SUMS}] AS kept FROM incoming WHERE age_histogram IS NOT NULL GROUP BY ALL
"""
_NEW_NAMES = """
    INSERT INTO {table} SELECT (SELECT count(*) FROM {table}) + row_number() OVER () - 1, * FROM
    (SELECT DISTINCT {columns} FROM {source} EXCEPT SELECT {columns} FROM {table})
"""
# Of several grades of a row the one that counts: no judge that only stands beside, then the newest version and grade.
_SIDE = ", ".join(f"'{judge}'" for judge in SIDE_JUDGES)
COUNTS_FIRST = f"judge IN ({_SIDE}), grader_version DESC, graded_at DESC"
_BEST = f"""
    CREATE OR REPLACE TEMP TABLE best AS SELECT cell, problem_id, sample, grade, verdict, lenient, graded_at
    FROM grades JOIN graders USING (grade) WHERE cell IN (SELECT unnest($cells))
    QUALIFY row_number() OVER (PARTITION BY cell, problem_id, sample ORDER BY {COUNTS_FIRST}) = 1
"""
_UPDATE = """
    UPDATE generations AS g SET grade = b.grade, verdict = b.verdict, lenient = b.lenient, graded_at = b.graded_at
    FROM best AS b WHERE g.cell = b.cell AND g.problem_id = b.problem_id AND g.sample = b.sample
    AND (g.grade IS DISTINCT FROM b.grade OR g.graded_at IS DISTINCT FROM b.graded_at)
"""


def _read(
    cursor: duckdb.DuckDBPyConnection, target: str, schema: pa.Schema, fields: Sequence[str], changes: Sequence[Change]
) -> None:
    """Fill a temporary table with some columns of chunk files; grades say by their file name which block they are."""
    grades = schema is GRADES
    number = ", regexp_extract(filename, 'b(\\d+)\\.parquet$', 1)::INTEGER AS block" if grades else ""
    cursor.execute(
        f"CREATE OR REPLACE TEMP TABLE {target} ({_declared(fields, schema)}{', block INTEGER' if grades else ''})"
    )
    chunks = [str(path) for change in changes for path in change.files]
    if not chunks:
        return
    named, listed = ", ".join(fields), ", ".join(f"'{name}'" for name in fields)
    insert = f"INSERT INTO {target} BY NAME SELECT {{}}{number} FROM read_parquet($files, filename = true{{}})"
    try:
        cursor.execute(insert.format(named, ""), {"files": chunks})
    except duckdb.Error:
        # Older files lack nullable columns; reading them by name takes half as long again.
        columns = f"COLUMNS(lambda name: name IN ({listed}))"
        cursor.execute(insert.format(columns, ", union_by_name = true"), {"files": chunks})


def _declared(names: Sequence[str], schema: pa.Schema | None = None) -> str:
    def kind(name: str) -> str:
        source = schema or (GENERATIONS if name in GENERATIONS.names else GRADES)
        return _SQL_TYPES[source.field(name).type]

    return ", ".join(f"{name} {kind(name)}" for name in names)


def nothing(schema: pa.Schema) -> str:
    """A relation of no rows with all columns of a table."""
    columns = ", ".join(f"NULL::{_SQL_TYPES[field.type]} AS {field.name}" for field in schema)
    return f"SELECT {columns} WHERE false"


@contextmanager
def _attached(cursor: duckdb.DuckDBPyConnection, path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A copy under the name `copy`, for reading."""
    cursor.execute(f"ATTACH '{_quoted(str(path))}' AS copy (READ_ONLY)")
    try:
        yield cursor
    finally:
        cursor.execute("DETACH copy")


def _quoted(text: str) -> str:
    return text.replace("'", "''")
