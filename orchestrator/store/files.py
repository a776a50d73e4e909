"""Durable writes: a file appears whole under its name, or not at all."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.store import mirror

# A writer that needs longer than this for one file is dead.
STALE_SECONDS = 24 * 3600


def create_if_absent(target: Path, write: Callable[[Path], None], temporary: Path) -> bool:
    """Write beside, fsync, hard-link to `target`; False, with nothing changed, where target exists already.

    `write` fills the path it is given, which lies in `temporary` and never ends in .parquet. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(target, write, temporary)
    try:
        if (bucket := _bucket(target)) is not None:
            if won := bucket.create(target, draft):
                draft.replace(target)
            return won
        os.link(draft, target)
    except FileExistsError:
        # Over NFS a link can succeed although its reply was lost: then the draft has two names.
        if draft.stat().st_nlink != 2:
            return False
    finally:
        draft.unlink(missing_ok=True)
    _sync_directory(target.parent)
    return True


def replace(target: Path, write: Callable[[Path], None], temporary: Path) -> None:
    """Like create_if_absent, but the newest writer wins: for state, never for rows. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft(target, write, temporary)
    if (bucket := _bucket(target)) is not None:
        bucket.replace(target, draft)
    draft.replace(target)
    _sync_directory(target.parent)


def remove(target: Path) -> None:
    """Delete a file; none is fine. Raises OSError."""
    if (bucket := _bucket(target)) is not None:
        bucket.remove(target)
    target.unlink(missing_ok=True)


def text_writer(text: str) -> Callable[[Path], None]:
    """A `write` argument that stores UTF-8 text."""

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def json_writer(value: Any) -> Callable[[Path], None]:
    """A `write` argument that stores readable JSON. Raises ValueError for NaN."""
    return text_writer(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def table_writer(table: pa.Table) -> Callable[[Path], None]:
    """A `write` argument that stores a Parquet file, zstd-compressed, the schema's metadata in its footer."""
    return lambda path: pq.write_table(table, path, compression="zstd")


def read_json(path: Path) -> Any | None:
    """The file's value; None where it is missing or not JSON (a torn copy is the same as no file)."""
    try:
        return json.loads(mirror.fetch(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def sweep(temporary: Path) -> None:
    """Remove drafts that a killed writer left more than STALE_SECONDS ago."""
    limit = time.time() - STALE_SECONDS
    for path in temporary.glob("*.inprogress"):
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < limit:
                path.unlink()


def _bucket(target: Path) -> mirror.Mirror | None:
    found = mirror.of(target)
    return found if found is not None and found.shared(target) else None


def _draft(target: Path, write: Callable[[Path], None], temporary: Path) -> Path:
    temporary.mkdir(exist_ok=True)
    draft = temporary / f"{target.stem}.{uuid.uuid4().hex}.inprogress"
    try:
        write(draft)
        with draft.open("rb") as handle:
            os.fsync(handle.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
