"""Bringing a store of an older schema version up to date, file by file.

A file is replaced as a whole by one with the same rows, and store.json is replaced last. Whenever it is interrupted,
every row is there and readable, and the same call goes on: files that are up to date already are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator import control
from orchestrator.errors import UserError
from orchestrator.store import files, mirror
from orchestrator.store.paths import StorePaths, chunk_files
from orchestrator.store.schema import GENERATIONS, GRADES, PLAN, SCHEMA_VERSION, conform
from orchestrator.store.writer import MARKER, check_version, version

Step = Callable[[pa.Table, pa.Schema], pa.Table]

STEPS: dict[int, Step] = {1: conform}
"""From version n to n + 1. Version 2 has every column in every file: null where a file of version 1 lacks one."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration did: from which version, files rewritten, files that were up to date."""

    version: int
    rewritten: int
    kept: int


def migrate(paths: StorePaths, show: Callable[[int], None] = lambda done: None) -> Migrated:
    """Bring a store to SCHEMA_VERSION; `show` hears the number of files looked at, every so often.

    Raises UserError for a newer version, while a campaign is being driven, and for a file that cannot be read; OSError
    where the disk fails. In each case the store can be read, and a later call goes on.
    """
    mirror.pull(paths.root)
    check_version(paths)
    before, _ = version(paths)
    for campaign in control.campaigns(paths.root):
        if control.running(campaign):
            raise UserError(
                f"campaign '{campaign.campaign_id}' is being driven, and would go on writing version {before}; stop it "
                "first: evictbench cancel JOB"
            )
    rewritten = kept = 0
    for path, schema in _tables(paths):
        if _upgrade(path, schema, paths):
            rewritten += 1
        else:
            kept += 1
        show(rewritten + kept)
    # From here on no older evictbench writes into this store.
    files.replace(paths.marker, files.json_writer(MARKER), paths.temporary)
    return Migrated(before, rewritten, kept)


def _tables(paths: StorePaths) -> Iterator[tuple[Path, pa.Schema]]:
    for _, path in chunk_files(paths.generations):
        yield path, GENERATIONS
    for grader in sorted(path for path in paths.grades.glob("*") if path.is_dir()):
        for _, path in chunk_files(grader):
            yield path, GRADES
    for path in sorted(paths.campaigns.glob("*/plan.parquet")):
        yield path, PLAN


def _upgrade(path: Path, schema: pa.Schema, paths: StorePaths) -> bool:
    try:
        found = int((pq.read_schema(path).metadata or {})[b"schema_version"])
        if found == SCHEMA_VERSION:
            return False
        table = pq.read_table(path)
        for step in range(found, SCHEMA_VERSION):
            table = STEPS[step](table, schema)
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{path} cannot be read as a file of an older version: {reason}. Move it out of the store (its chunk is "
            "then made again), and run the same command again."
        ) from error
    files.replace(path, files.table_writer(table), paths.temporary)
    return True
