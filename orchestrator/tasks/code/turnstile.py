"""Room for a second chance: a program that ran out of time is run again while no other program runs here.

Two file locks. Everybody holds `runs` while running, shared; who wants to be alone takes it exclusively. `entry` is
held while one waits for `runs`, so that new runs cannot overtake the one that waits.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(*, alone: bool = False) -> Iterator[None]:
    """Run beside others, or `alone`: then nobody starts until this ends. Without lock files: beside others."""
    try:
        entry, runs = (_open(name) for name in ("entry", "runs"))
    except OSError:
        yield
        return
    try:
        fcntl.flock(entry, fcntl.LOCK_EX)
        fcntl.flock(runs, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(entry, fcntl.LOCK_UN)
        yield
    finally:
        os.close(runs)
        os.close(entry)


def _open(name: str) -> int:
    path = Path(tempfile.gettempdir()) / f"evictbench-judge-{os.geteuid()}.{name}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
