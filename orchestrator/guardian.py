"""Cleans up after a driver that was killed: `python -m orchestrator.guardian MARK DIRECTORY`, stdin held by the driver.

A local Ray cluster mostly dies with its driver, but some agents wait a minute for a head that will not come back, and
an engine's own children may not notice at all. All of them inherited MARK in their environment. When stdin ends, the
guardian kills every process that carries the mark and removes the cluster's scratch directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "EVICTBENCH_CLUSTER"
"""Environment variable that carries the mark to everything a driver starts; it changes no result."""

_SWEEPS = 3
_GRACE_SECONDS = 1.0


def marked(mark: str) -> list[int]:
    """Ids of living processes, other than this one, that were started with the mark."""
    entry = f"{VARIABLE}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # gone meanwhile, or another user's
            if entry in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def sweep(mark: str) -> None:
    """Kill every marked process, and those that they started while dying."""
    for _ in range(_SWEEPS):
        for pid in marked(mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)


def main(mark: str, directory: str) -> None:
    """Wait for the driver's end, give the cluster a moment to end by itself, then clean up."""
    while sys.stdin.buffer.read(1):
        pass
    time.sleep(_GRACE_SECONDS)
    sweep(mark)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
