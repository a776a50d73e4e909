"""Fault storms: campaigns that are hit again and again while they work, and the store they must leave behind.

`python -m infra.faults --seeds 0:100` runs campaigns of simulated engines as real processes, on local processes or on
Ray, and strikes about once a second with a keyed choice of faults. A fault counts only if work was in flight when it
struck. After each campaign the store must hold every row once and every grade, and no process may be left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infra.faults import engines
from orchestrator.messages import capacity
from orchestrator.tests.doubles import SPEC
from orchestrator.tests.e2e.harness import Site

GAP_SECONDS = (0.4, 1.6)
CAMPAIGN_SECONDS = 300.0
_STUCK_SECONDS = 2.0
_SCRIPT = """
import sys
from pathlib import Path
from typing import Any
from rich.console import Console
from orchestrator import campaign, cluster
from orchestrator.backend_local import LocalBackend
from orchestrator.ledger import Limits
limits = Limits(attempts=1000, start_seconds=60, heartbeat_seconds=5, stop_seconds=5, drain_seconds=10)
options = campaign.Options(stuck_seconds={stuck}, create={create!r}, limits=limits)
connect = {connect}
sys.exit(campaign.run(Path({job!r}), Console(width=300), connect, options=options))
"""


@dataclass
class Tally:
    """Over all campaigns: faults that counted by kind, those that found nothing in flight, and what went wrong."""

    campaigns: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    idle: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    ungraded: int = 0
    hung: int = 0
    leaked: int = 0
    assigned: int = 0
    chunks: int = 0
    overworked: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing lost, doubled, hung or leaked, and repeated work within its bound."""
        return not (self.lost or self.doubled or self.ungraded or self.hung or self.leaked or self.overworked)


class Storm:
    """One campaign under fire. `backend` is local or ray (a Ray of the campaign's own)."""

    def __init__(self, root: Path, seed: int, backend: str, tally: Tally) -> None:
        self.site = Site(root, limit=96, policies="full, random, recent", max_tokens=400)
        self.random = np.random.Generator(np.random.Philox(key=[seed, 0xFA17]))
        self.backend, self.tally, self.seed = backend, tally, seed
        self.faults = root / "faults"
        self.faults.mkdir()
        self.process: subprocess.Popen[str] | None = None
        self.stopped: list[tuple[float, int]] = []
        self.struck = 0

    def run(self) -> None:
        """To the end of the campaign, then judge."""
        begin = time.monotonic()
        status = 1
        try:
            while status != 0:
                status = self.drive(begin + CAMPAIGN_SECONDS)
        except TimeoutError:
            self.tally.hung += 1
            self.tally.broken.append(f"seed {self.seed}: hung")
            self.kill_all()
        self.judge()
        self.tally.seconds += time.monotonic() - begin

    def drive(self, deadline: float) -> int:
        """One life of the driver. Faults stop after a while, so that the campaign can end."""
        connect = "LocalBackend" if self.backend == "local" else "lambda: cluster.connect(None)"
        script = _SCRIPT.format(
            stuck=_STUCK_SECONDS, create=f"{engines.__name__}:create", connect=connect, job=str(self.site.job)
        )
        log = (self.site.root / "driver.log").open("a")
        environment = {**os.environ, engines.FOLDER: str(self.faults), "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = self.site.spawn([sys.executable, "-c", script], stdout=log, env=environment)
        next_strike = time.monotonic() + self.gap()
        while self.process.poll() is None:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError
            self.wake_stopped(now)
            if now >= next_strike and self.struck < 12:
                self.strike()
                next_strike = time.monotonic() + self.gap()
            time.sleep(0.05)
        self.wake_stopped(float("inf"))
        log.close()
        return self.process.returncode

    def gap(self) -> float:
        return float(self.random.uniform(*GAP_SECONDS))

    def strike(self) -> None:
        """One fault of a drawn kind; counted if an engine had rows running."""
        kinds: Sequence[str] = (*engines.FAULTS, *self.signals())
        kind = kinds[int(self.random.integers(len(kinds)))]
        busy = [facts for facts in self.live() if facts.get("running", 0) > 0]
        if not busy:
            self.tally.idle += 1
            return
        self.struck += 1
        if kind in engines.FAULTS:
            (self.faults / kind).touch()
            if self.claimed(kind):
                self.tally.counted[kind] += 1
            else:
                self.tally.idle += 1
            return
        self.signals()[kind](int(busy[0]["pid"]))
        self.tally.counted[kind] += 1

    def claimed(self, kind: str) -> bool:
        """Whether an engine took the waiting fault within a second; one that nobody took is withdrawn."""
        deadline = time.monotonic() + 1.0
        while (self.faults / kind).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with suppress(FileNotFoundError):
            (self.faults / kind).unlink()
            return False
        return True

    def signals(self) -> dict[str, Callable[[int], None]]:
        """Faults from outside, by name; each takes the process id of a busy engine."""
        assert self.process is not None
        driver = self.process.pid

        def stop(pid: int, seconds: float) -> None:
            self.send(pid, signal.SIGSTOP)
            self.stopped.append((time.monotonic() + seconds, pid))

        return {
            "worker-killed": lambda pid: self.send(pid, signal.SIGKILL),
            "worker-stopped-for-good": lambda pid: stop(pid, 60.0),
            "worker-stopped-2s": lambda pid: stop(pid, 2.0),
            "driver-killed": lambda pid: self.send(driver, signal.SIGKILL),
            "driver-terminated": lambda pid: self.send(driver, signal.SIGTERM),
            "driver-stopped-2s": lambda pid: stop(driver, 2.0),
        }

    def send(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def wake_stopped(self, now: float) -> None:
        for due, pid in self.stopped:
            if due <= now:
                self.send(pid, signal.SIGCONT)
        self.stopped = [(due, pid) for due, pid in self.stopped if due > now]

    def live(self) -> list[dict[str, Any]]:
        found = []
        for path in self.site.store.glob("campaigns/*/live/*.json"):
            with suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return found

    def kill_all(self) -> None:
        assert self.process is not None
        self.wake_stopped(float("inf"))
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def judge(self) -> None:
        """Compare the store with what was asked for."""
        tally, site = self.tally, self.site
        rows, wanted = site.rows(), 3 * site.limit
        tally.campaigns += 1
        tally.rows += len(rows)
        tally.lost += max(0, wanted - len(set(rows)))
        tally.doubled += len(rows) - len(set(rows))
        tally.ungraded += len(set(rows) - set(site.graded()))
        leftovers = site.leftovers()
        tally.leaked += len(leftovers)
        if leftovers or len(rows) != wanted:
            tally.broken.append(f"seed {self.seed}: {len(rows)} of {wanted} rows, left: {leftovers}")
        assigned = sum(event["event"] == "assigned" for event in self.events())
        chunks = len(site.chunks())
        tally.assigned += assigned
        tally.chunks += chunks
        # A fault costs at most what one engine held.
        held = capacity(SPEC) // 8 + 1
        if assigned > chunks + held * (self.struck + 1):
            tally.overworked += 1
            tally.broken.append(f"seed {self.seed}: {assigned} handed out, {chunks} chunks, {self.struck} faults")

    def events(self) -> Iterator[dict[str, Any]]:
        for path in self.site.store.glob("campaigns/*/events.jsonl"):
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    yield json.loads(line)


def storms(seeds: Sequence[int], backend: str, tally: Tally, show: Callable[[int, Tally], None]) -> None:
    """One campaign per seed; `show` is called after each."""
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="evf", dir=os.environ.get("RAY_TMPDIR", "/tmp")) as folder:
            Storm(Path(folder), seed, backend, tally).run()
        show(seed, tally)
