"""Which chunk files a store holds, without looking at each of them every time.

A committed chunk never changes, so a folder whose modification time is the same holds the same chunks; only folders
that changed are listed. A quarter of a million files then cost a few hundred calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.store.paths import StorePaths, parse_chunk

# Clocks of file systems may tick this slowly: a folder that changed just now may change again unnoticed.
SETTLED_SECONDS = 2.0


@dataclass(frozen=True, slots=True, order=True)
class Folder:
    """The chunk files of one cell: its generations, or its grades by `grader` (the name below grades/)."""

    cell_id: str
    grader: str
    path: Path = field(compare=False)

    @property
    def table(self) -> str:
        """generations or grades."""
        return "grades" if self.grader else "generations"


def folders(paths: StorePaths) -> dict[Folder, int]:
    """Every folder of chunks with its modification time in nanoseconds; no order."""
    found = {Folder(name, "", path): time for name, path, time in _directories(paths.generations)}
    for grader, path, _ in _directories(paths.grades):
        found.update({Folder(name, grader, below): time for name, below, time in _directories(path)})
    return found


def chunks(folder: Folder) -> dict[tuple[int, int], Path]:
    """Committed chunk files of a folder by (sample, block); empty where it has gone meanwhile."""
    try:
        found = {parse_chunk(path): path for path in folder.path.iterdir()}
    except OSError:
        return {}
    return {(chunk.sample, chunk.block): path for chunk, path in found.items() if chunk is not None}


def settled(modified: int) -> bool:
    """Whether a folder changed long enough ago for its time to tell the next change."""
    return time.time() - modified / 1e9 > SETTLED_SECONDS


def stamp(path: Path) -> tuple[int, int]:
    """Size and time of a file; a file that has just been removed has neither."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return (-1, -1)
    return (status.st_size, status.st_mtime_ns)


def _directories(directory: Path) -> Iterator[tuple[str, Path, int]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_dir():
                    yield entry.name, Path(entry.path), entry.stat().st_mtime_ns
