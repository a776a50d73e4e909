"""Writing: the file is the commit (orchestration.md section 3).

However often a chunk is attempted, and whoever is killed meanwhile, one file with all its rows exists or none. Any
number of processes and drivers may write to one store; nothing here takes a lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.chunks import BLOCK, ChunkId, Work
from orchestrator.errors import UserError
from orchestrator.store import files, mirror
from orchestrator.store.campaign import Campaign
from orchestrator.store.paths import GraderKey, StorePaths, chunk_files
from orchestrator.store.schema import GENERATIONS, GRADES, READABLE, SCHEMA_VERSION

_PROBE_BYTES = 1 << 16
MARKER = {"schema_version": SCHEMA_VERSION, "block": BLOCK}


@dataclass(frozen=True, slots=True)
class Committed:
    """The rows are in the store, and this call put them there."""

    path: Path


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """Another attempt was first; this one's rows are dropped."""

    path: Path


Outcome = Committed | AlreadyCommitted


@dataclass(frozen=True, slots=True)
class Store:
    """A writable store. Cheap to open; safe to open in every process."""

    paths: StorePaths

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> Store:
        """Open, or with `create` make, the store at `path`, and try one write.

        Raises UserError for a directory that is no store, another schema version, and an unwritable or full disk.
        """
        paths = StorePaths(Path(path))
        if create and not _marked(paths):
            _make(paths)
        check_version(paths, writing=True)
        try:
            files.sweep(paths.temporary)
            files.replace(paths.temporary / "probe", _write_probe, paths.temporary)
            (paths.temporary / "probe").unlink(missing_ok=True)
            guarded = mirror.of(paths.root) is None or not files.create_if_absent(
                paths.marker, files.json_writer(MARKER), paths.temporary
            )
        except OSError as error:
            raise _unwritable(paths, error) from error
        if not guarded:
            raise UserError(
                f"{paths.place} overwrites an object that a write with If-None-Match must leave alone, so two workers "
                "could both commit one chunk. Use a service that honours If-None-Match, or a directory."
            )
        return cls(paths)

    def commit_chunk(self, work: Work, rows: Sequence[Mapping[str, Any]]) -> Outcome:
        """Commit all rows of a chunk, or none.

        Raises ValueError where the rows' keys are not exactly the chunk's, or a row does not fit the schema; OSError
        where the disk fails. In each case the store is unchanged.
        """
        wanted = [f"{work.chunk.cell_id}/{row.problem_id}/{work.chunk.sample}" for row in work.rows]
        _check_keys(work.chunk, wanted, [str(row["row_id"]) for row in rows])
        return self._commit(self.paths.generation(work.chunk), _table(rows, GENERATIONS))

    def commit_grades(self, grader: GraderKey, chunk: ChunkId, rows: Sequence[Mapping[str, Any]]) -> Outcome:
        """Commit the grades of one chunk by one grader version, like commit_chunk."""
        keys = [str(row["row_id"]) for row in rows]
        _check_keys(chunk, [f"{chunk.cell_id}/{row['problem_id']}/{chunk.sample}" for row in rows], keys)
        return self._commit(self.paths.grade(grader, chunk), _table(rows, GRADES))

    def discard_grades(self, grader: GraderKey, chunks: Iterable[ChunkId]) -> None:
        """Remove grades of one grader version, so that these chunks are graded again. Raises OSError."""
        for chunk in chunks:
            files.remove(self.paths.grade(grader, chunk))

    def holds(self, chunk: ChunkId) -> bool:
        """Whether a chunk is in the store; False also where nobody can tell, since it is made again at worst."""
        with suppress(OSError):
            return mirror.fetch(self.paths.generation(chunk)).exists()
        return False

    def rows(self, chunk: ChunkId, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Some columns of a committed chunk. Raises OSError where it cannot be read."""
        return pq.read_table(mirror.fetch(self.paths.generation(chunk)), columns=list(columns)).to_pylist()

    def committed(self, cell_ids: Iterable[str]) -> set[ChunkId]:
        """Chunks of these cells that are in the store."""
        return {chunk for chunk, _ in chunk_files(self.paths.generations, cell_ids)}

    def graded(self, grader: GraderKey, cell_ids: Iterable[str]) -> set[ChunkId]:
        """Chunks of these cells that this grader version has graded."""
        return {chunk for chunk, _ in chunk_files(self.paths.grades / grader.name, cell_ids)}

    def campaign(self, campaign_id: str) -> Campaign:
        """Files of one campaign; the id is the job's name."""
        return Campaign(self.paths, campaign_id)

    def _commit(self, target: Path, table: pa.Table) -> Outcome:
        won = files.create_if_absent(target, files.table_writer(table), self.paths.temporary)
        return Committed(target) if won else AlreadyCommitted(target)


def missing(path: Path) -> bool:
    """Whether there is nothing at `path` yet: no directory, or no store in a bucket. Raises UserError."""
    paths = StorePaths(path)
    return not (paths.root.exists() if mirror.of(paths.root) is None else _marked(paths))


def version(paths: StorePaths) -> tuple[Any, Any]:
    """Schema version and block size of a store as its store.json has them. Raises UserError where there is no store."""
    if not _marked(paths):
        raise UserError(
            f"{paths.name} is no store: it has no store.json. Run a job first (evictbench run JOB), or name the "
            "directory that execution.store in the job file points to."
        )
    marker = files.read_json(paths.marker)
    return (marker.get("schema_version"), marker.get("block")) if isinstance(marker, dict) else (None, None)


def check_version(paths: StorePaths, *, writing: bool = False) -> None:
    """Raises UserError unless the directory is a store that can be read here, or with `writing` be added to."""
    found, block = version(paths)
    if found not in READABLE or block != BLOCK:
        raise UserError(
            f"{paths.name} was written with store schema version {found} (block {block}); this evictbench reads and "
            f"writes version {SCHEMA_VERSION} (block {BLOCK}). Use the evictbench release that wrote it, or name a new "
            "directory in execution.store."
        )
    if writing and found != SCHEMA_VERSION:
        raise UserError(
            f"{paths.name} was written with store schema version {found}; this evictbench adds rows to version "
            f"{SCHEMA_VERSION}. Bring it up to date, rows stay as they are: evictbench migrate {paths.name}"
        )


def _marked(paths: StorePaths) -> bool:
    try:
        return mirror.fetch(paths.marker).exists()
    except OSError as error:
        raise UserError(f"the store cannot be read: {error}") from error


def _make(paths: StorePaths) -> None:
    if paths.root.exists() and not paths.root.is_dir():
        raise UserError(f"{paths.root} is a file, so it cannot be a store; name a directory in execution.store.")
    try:
        # A second driver may be making the same store: its tmp and store.json are no foreign files.
        paths.root.mkdir(parents=True, exist_ok=True)
        foreign = sorted({path.name for path in paths.root.iterdir()} - {"tmp", "store.json", mirror.MARK})
        if foreign:
            raise UserError(
                f"{paths.root} is not empty and is no store (it holds {foreign[0]} and no store.json); name an empty "
                "or new directory in execution.store."
            )
        files.create_if_absent(paths.marker, files.json_writer(MARKER), paths.temporary)
    except OSError as error:
        raise _unwritable(paths, error) from error


def _write_probe(path: Path) -> None:
    path.write_bytes(bytes(_PROBE_BYTES))


def _unwritable(paths: StorePaths, error: OSError) -> UserError:
    return UserError(
        f"the store {paths.name} cannot be written: {error.strerror or error}. Free some space or mend the "
        "permissions, or name another directory in execution.store; nothing was started."
    )


def _check_keys(chunk: ChunkId, wanted: Sequence[str], got: Sequence[str]) -> None:
    if sorted(wanted) != sorted(got) or len(set(got)) != len(got):
        missing, extra = sorted(set(wanted) - set(got)), sorted(set(got) - set(wanted))
        raise ValueError(
            f"rows of {chunk.cell_id}/{chunk.name} are not its requests: {len(got)} rows for {len(wanted)} requests, "
            f"missing {missing}, unexpected {extra}"
        )


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table of exactly `schema`. Raises ValueError for an unknown or missing column, a null, a wrong type."""
    for row in rows:
        if row.keys() != set(schema.names):
            unknown, missing = sorted(row.keys() - set(schema.names)), sorted(set(schema.names) - row.keys())
            raise ValueError(f"row {row.get('row_id')}: unknown columns {unknown}, missing columns {missing}")
    try:
        table = pa.Table.from_pylist(list(rows), schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"rows do not fit the {schema.metadata[b'table'].decode()} schema: {error}") from error
    nulls = [field.name for field in schema if not field.nullable and table[field.name].null_count]
    if nulls:
        raise ValueError(f"columns {nulls} must not be null")
    return table
