"""Cleans up after a driver that was killed: `python -m orchestrator.guardian MARK DIRECTORY`, stdin held by the driver.

A local Ray cluster mostly dies with its driver, but some agents wait a minute for a head that will not come back, and
an engine's own children may not notice at all. While the driver lives, the guardian remembers its descendants; all of
them also inherited MARK in their environment. Neither sign is enough alone: what is started in the driver's last
second was never seen as a descendant, and a process that sets its title may overwrite its environment. When stdin
ends, the guardian kills both kinds and removes the cluster's scratch directory.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

VARIABLE = "EVICTBENCH_CLUSTER"
"""Environment variable that carries the mark to everything a driver starts; it changes no result."""

_SWEEPS = 3
_GRACE_SECONDS = 1.0
_LOOK_SECONDS = 0.5


def marked(mark: str) -> set[psutil.Process]:
    """Living processes, other than this one, that were started with the mark."""
    entry = f"{VARIABLE}={mark}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError, psutil.Error):  # gone meanwhile, or another user's
            if entry in path.read_bytes().split(b"\0"):
                found.add(psutil.Process(int(path.parent.name)))
    return found - {psutil.Process()}


def descendants(driver: psutil.Process) -> set[psutil.Process]:
    """Living descendants of the driver other than this process; empty once it is gone."""
    with suppress(psutil.Error):
        return set(driver.children(recursive=True)) - {psutil.Process()}
    return set()


def sweep(mark: str, remembered: set[psutil.Process]) -> None:
    """Kill every remembered or marked process, and those that they started while dying."""
    for _ in range(_SWEEPS):
        for process in remembered | marked(mark):
            # psutil compares creation times, so a process id that was given away is not killed.
            with suppress(psutil.Error):
                process.kill()
        time.sleep(0.2)


def main(mark: str, directory: str) -> None:
    """Watch until the driver's end, give the cluster a moment to end by itself, then clean up."""
    driver, remembered = psutil.Process(os.getppid()), set[psutil.Process]()
    while not _ended():
        remembered = {process for process in remembered if process.is_running()} | descendants(driver)
    time.sleep(_GRACE_SECONDS)
    sweep(mark, remembered)
    shutil.rmtree(directory, ignore_errors=True)


def _ended() -> bool:
    """Whether the driver let go of our stdin; waits a little for it."""
    readable, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
    return bool(readable) and not sys.stdin.buffer.read(1)


if __name__ == "__main__":
    main(*sys.argv[1:3])
