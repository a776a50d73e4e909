"""What a store needs of its file system or bucket, tried with two processes.

Nothing else is relied on: no lock is taken, and no file is opened exclusively or written in place.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from orchestrator.store import files, mirror
from orchestrator.store.listing import SETTLED_SECONDS

RACES = 20
_REPLACES = 100
_TICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Observed:
    """Of RACES names that two processes raced for: names won, counted per winner, and names with one winner's text.

    unseen   names that the other process did not find, or found unfinished, right after they were committed
    torn     reads of a file that was being replaced which found no file or half of one
    unmoved  whether a folder's time stayed the same although a file appeared in it (never for a bucket)
    skew     clock of the file system minus this machine's, seconds (0 for a bucket)
    commit   seconds of one commit
    """

    wins: int
    whole: int
    unseen: int
    torn: int
    unmoved: bool
    skew: float
    commit: float

    def complaints(self) -> Iterator[str]:
        """What does not hold, and what would come of it."""
        if (self.wins, self.whole) != (RACES, RACES):
            yield f"{RACES} names had {self.wins} winners, so two workers could both commit a chunk"
        if self.unseen:
            yield f"{self.unseen} committed files could not be seen by another process, so work would be done again"
        if self.torn:
            yield f"{self.torn} reads met a file that was half replaced or gone, so pause and cancel could be missed"
        if self.unmoved:
            yield "a folder's time does not change when a file appears in it, so readers would miss new rows"
        if abs(self.skew) > SETTLED_SECONDS:
            yield f"its clock is {self.skew:+.1f} s from this machine's: readers may miss rows; synchronise the clocks"


def observe(store: Path) -> Observed:
    """Try everything in a folder of the store, which is removed. Raises OSError where even one process fails."""
    root = mirror.local(store)
    directory = root / f".evictbench-doctor-{uuid.uuid4().hex[:8]}"
    place = str(store), directory.name
    try:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            wins = sum(pool.map(race, [place] * 2, ["a", "b"]))
            whole = sum(_text(directory / f"n{number}") in ("a", "b") for number in range(RACES))
            unseen, begin = 0, time.monotonic()
            for number in range(RACES):
                _create(directory, f"v{number}", "whole")
            commit = (time.monotonic() - begin) / RACES
            unseen = pool.submit(missing, place).result()
            reading = pool.submit(torn, place)
            _replace(directory)
            broken = reading.result()
        unmoved, skew = (False, 0.0) if mirror.of(root) is not None else _times(directory)
    finally:
        if (bucket := mirror.of(root)) is not None:
            bucket.remove(directory)
        shutil.rmtree(directory, ignore_errors=True)
    return Observed(wins, whole, unseen, broken, unmoved, skew, commit)


def race(place: tuple[str, str], word: str) -> int:
    """Create RACES names where absent; returns how many this process won."""
    directory = mirror.local(Path(place[0])) / place[1]
    return sum(_create(directory, f"n{number}", word) for number in range(RACES))


def missing(place: tuple[str, str]) -> int:
    """Of RACES committed names, how many this process does not find whole."""
    directory = mirror.local(Path(place[0])) / place[1]
    return sum(_text(directory / f"v{number}") != "whole" for number in range(RACES))


def torn(place: tuple[str, str]) -> int:
    """Read the state file until its last replacement; returns reads that found it missing or unfinished."""
    directory, bad, begun, text = mirror.local(Path(place[0])) / place[1], 0, False, ""
    deadline = time.monotonic() + 60.0
    while text != _state(_REPLACES) and time.monotonic() < deadline:
        text = _text(directory / "state")
        whole = text.startswith("<") and text.endswith(">")
        bad += begun and not whole
        begun = begun or whole
    return bad


def _replace(directory: Path) -> None:
    for number in range(_REPLACES + 1):
        files.replace(directory / "state", files.text_writer(_state(number)), directory / "tmp")


def _state(number: int) -> str:
    return f"<{number:>4096}>"


def _times(directory: Path) -> tuple[bool, float]:
    before = directory.stat().st_mtime_ns
    time.sleep(_TICK_SECONDS)
    now = time.time()
    _create(directory, "last", "whole")
    return directory.stat().st_mtime_ns == before, (directory / "last").stat().st_mtime - now


def _create(directory: Path, name: str, text: str) -> bool:
    return files.create_if_absent(directory / name, files.text_writer(text), directory / "tmp")


def _text(path: Path) -> str:
    try:
        return mirror.fetch(path).read_text(encoding="utf-8")
    except OSError:
        return ""
