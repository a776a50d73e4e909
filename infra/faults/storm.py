"""Fault storms: campaigns that are hit again and again while they work, and the store they must leave behind.

A storm is one campaign of engines that run as real processes: on this machine, or on a Ray cluster of separate hosts.
It is struck about once a second with a keyed choice of faults. A fault counts only if work was in flight when it
struck. After the campaign the store must hold every row once and every grade, and no process may be left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from infra.faults import engines
from infra.faults.hosts import SETTINGS, Hosts
from infra.faults.tally import Tally
from orchestrator.control import age
from orchestrator.messages import capacity
from orchestrator.tests.doubles import SPEC
from orchestrator.tests.e2e.harness import Site

_SCRIPT = """
import sys
from pathlib import Path
from rich.console import Console
from orchestrator import campaign, cluster
from orchestrator.backend_local import LocalBackend
from orchestrator.ledger import Limits
limits = Limits(attempts=1000, strikes=1000, start_seconds={start}, heartbeat_seconds={silent}, stop_seconds=5,
                drain_seconds=10)
options = campaign.Options(stuck_seconds={stuck}, create={create!r}, limits=limits)
connect = {connect}
sys.exit(campaign.run(Path({job!r}), Console(width=300), connect, options=options))
"""


@dataclass(frozen=True)
class Weather:
    """How storms of a kind go: the campaign, seconds between faults, faults at most, seconds until it must be over.

    stuck, silent, start  deadlines of the scheduler, seconds: without a token, without a heartbeat, for a start
    """

    job: Mapping[str, Any]
    gap: tuple[float, float]
    faults: int
    seconds: float
    stuck: float
    silent: float
    start: float


_SMALL = {"limit": 96, "policies": "full, random, recent", "max_tokens": 400}
_REAL = {"limit": 16, "policies": "random, recent", "max_tokens": 300, "kind": "vllm"}
WEATHER = {
    "local": Weather(_SMALL, (0.4, 1.6), 24, 600.0, 2.0, 5.0, 60.0),
    "ray": Weather(_SMALL, (1.0, 4.0), 12, 900.0, 4.0, 10.0, 90.0),
    "vllm": Weather(_REAL, (2.0, 8.0), 4, 1800.0, 20.0, 30.0, 400.0),
}
KINDS = tuple(WEATHER)
_LOOK_SECONDS = 0.05
# An engine whose last heartbeat is older may be gone.
_FRESH_SECONDS = 3.0


@dataclass
class World:
    """Where storms of one kind happen; `faults` is the folder in which faults wait for an engine."""

    kind: str
    hosts: Hosts | None = None
    faults: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="evf-faults-")))

    @property
    def environment(self) -> dict[str, str]:
        """What every process of a storm must know."""
        own = {engines.FOLDER: str(self.faults), "PYTHONPATH": str(Path(__file__).parents[2])}
        return {**own, **SETTINGS} if self.kind == "ray" else own


class Storm:
    """One campaign under fire."""

    def __init__(self, world: World, seed: int, tally: Tally) -> None:
        self.world, self.weather, self.seed, self.tally = world, WEATHER[world.kind], seed, tally
        # Ray's sockets need a short name.
        self.folder = tempfile.TemporaryDirectory(prefix="evf", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
        self.site = Site(Path(self.folder.name), **self.weather.job)
        self.random = np.random.Generator(np.random.Philox(key=[seed, 0xFA17]))
        self.process: subprocess.Popen[str] | None = None
        self.stopped: list[tuple[float, int]] = []
        self.struck = 0

    def run(self) -> None:
        """To the end of the campaign, then judge."""
        begin = time.monotonic()
        status = 1
        try:
            while status != 0:
                status = self.drive(begin + self.weather.seconds)
        except TimeoutError as error:
            self.tally.hung += 1
            self.tally.broken.append(f"seed {self.seed}: hung {error}")
            self.kill_all()
        self.judge()
        self.tally.seconds += time.monotonic() - begin
        self.folder.cleanup()

    def drive(self, deadline: float) -> int:
        """One life of the driver. Faults stop after a while, so that the campaign can end."""
        hosts = self.world.hosts
        if hosts is not None:
            hosts.heal()
        connect = "LocalBackend" if hosts is None else f"lambda: cluster.connect({hosts.address!r})"
        create, weather = f"{engines.__name__}:create", self.weather
        script = _SCRIPT.format(
            stuck=weather.stuck, silent=weather.silent, start=weather.start,
            create=create, connect=connect, job=str(self.site.job),
        )  # fmt: skip
        command = [sys.executable, "-c", script]
        with (self.site.root / "driver.log").open("a") as log:
            self.process = self.site.spawn(
                command if hosts is None else hosts.command(0, command),
                stdout=log,
                env={**os.environ, **self.world.environment},
            )
        self.storm(deadline)
        self.wake_stopped(float("inf"))
        return self.process.returncode

    def storm(self, deadline: float) -> None:
        """Strike until the driver has ended. Raises TimeoutError at the deadline."""
        assert self.process is not None
        next_strike = time.monotonic() + self.gap()
        while self.process.poll() is None:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError
            self.wake_stopped(now)
            if self.world.hosts is not None:
                self.world.hosts.mend()
            if now >= next_strike and self.struck < self.weather.faults and self.strike():
                next_strike = time.monotonic() + self.gap()
            time.sleep(_LOOK_SECONDS)

    def gap(self) -> float:
        return float(self.random.uniform(*self.weather.gap))

    def strike(self) -> bool:
        """One fault of a drawn kind, counted if an engine had rows running; False while none has."""
        busy = [facts for facts in self.live() if facts.get("running", 0) > 0 and (age(facts) or 0.0) < _FRESH_SECONDS]
        if not busy:
            return False
        outside = self.outside()
        kinds = (*engines.FAULTS, *outside)
        kind = kinds[int(self.random.integers(len(kinds)))]
        if kind in outside:
            outside[kind](int(busy[int(self.random.integers(len(busy)))]["pid"]))
        elif not self.claimed(kind):
            self.tally.idle += 1
            return True
        self.struck += 1
        self.tally.counted[kind] += 1
        return True

    def claimed(self, kind: str) -> bool:
        """Whether an engine took the waiting fault within some seconds; one that nobody took is withdrawn."""
        waiting = self.world.faults / kind
        waiting.touch()
        deadline = time.monotonic() + self.weather.stuck
        while waiting.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        with suppress(FileNotFoundError):
            waiting.unlink()
            return False
        return True

    def outside(self) -> dict[str, Callable[[int], None]]:
        """Faults from outside, by name; each takes the process id of a busy engine."""
        assert self.process is not None
        driver = self.process.pid

        def stop(pid: int, seconds: float) -> None:
            self.send(pid, signal.SIGSTOP)
            self.stopped.append((time.monotonic() + seconds, pid))

        def stop_all(pid: int) -> None:
            for each in {driver, pid, *(int(facts["pid"]) for facts in self.live())}:
                stop(each, 2.0)

        found: dict[str, Callable[[int], None]] = {
            "worker-killed": lambda pid: self.send(pid, signal.SIGKILL),
            "worker-stopped-for-good": lambda pid: stop(pid, 600.0),
            "worker-stopped-2s": lambda pid: stop(pid, 2.0),
            "driver-killed": lambda pid: self.send(driver, signal.SIGKILL),
            "driver-terminated": lambda pid: self.send(driver, signal.SIGTERM),
            "driver-stopped-2s": lambda pid: stop(driver, 2.0),
        }
        hosts = self.world.hosts
        if hosts is None:
            return found | {"all-stopped-2s": stop_all}
        return found | {
            "raylet-killed": lambda pid: hosts.kill_raylet(hosts.host_of(pid), 3.0),
            "host-lost": lambda pid: hosts.lose(hosts.host_of(pid), 3.0),
            "head-lost": lambda pid: hosts.lose(0, 0.0),
            "network-cut-2s": lambda pid: hosts.cut(hosts.host_of(pid), 2.0),
            "network-cut-20s": lambda pid: hosts.cut(hosts.host_of(pid), 20.0),
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
        rows, wanted = site.rows(), len(site.policies.split(",")) * site.limit
        tally.campaigns += 1
        tally.rows += len(rows)
        tally.lost += max(0, wanted - len(set(rows)))
        tally.doubled += len(rows) - len(set(rows))
        tally.ungraded += len(set(rows) - set(site.graded()))
        leftovers = [*site.leftovers(), *(self.world.hosts.engines() if self.world.hosts is not None else ())]
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
