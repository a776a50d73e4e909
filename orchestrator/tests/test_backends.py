"""Both backends with real processes and real deaths: same messages, same ends, nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator import cluster
from orchestrator.backend import Backend, Launch, Lost
from orchestrator.backend_local import LocalBackend
from orchestrator.messages import Assignment, Order, Report, WorkerState
from orchestrator.store.writer import Store
from orchestrator.tests.doubles import CELL, SPEC, work


@dataclass
class Bench:
    """A backend, a store, and everything the backend said."""

    backend: Backend
    store: Store
    heard: list[object]

    def start(self, name: str, fault: str = "none", stuck_seconds: float = 60.0) -> None:
        launch = Launch(
            worker=name,
            spec=replace(SPEC, model=fault),
            store=str(self.store.paths.root),
            campaign="job",
            log=str(self.store.paths.root / f"{name}.log"),
            threads=1,
            stuck_seconds=stuck_seconds,
            create="orchestrator.tests.doubles:create",
        )
        self.backend.start(launch, self.backend.machines()[0].name)

    def until(self, found: Callable[[object], bool], seconds: float = 60.0) -> object:
        """The first message that fits."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            messages = self.backend.poll(0.2)
            self.heard += messages
            for message in messages:
                if found(message):
                    return message
        raise AssertionError(self.heard[-5:])

    def ready(self, name: str) -> int:
        """Wait for a worker; returns its process id."""
        report = self.until(lambda m: isinstance(m, Report) and m.worker == name and m.state is WorkerState.READY)
        assert isinstance(report, Report)
        assert report.provenance is not None
        return report.provenance.pid

    def give(self, name: str, *blocks: int, max_tokens: int = 200) -> None:
        chunks = tuple(Assignment(CELL, work(block, max_tokens=max_tokens)) for block in blocks)
        self.backend.send(name, Order(assign=chunks))

    def lost(self, name: str, seconds: float = 60.0) -> str:
        lost = self.until(lambda m: isinstance(m, Lost) and m.worker == name, seconds)
        assert isinstance(lost, Lost)
        return lost.reason


@pytest.fixture(scope="module", params=["local", "ray"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = LocalBackend(places=2) if request.param == "local" else cluster.connect()
    yield made
    made.close()


@pytest.fixture
def bench(backend: Backend, tmp_path: Path) -> Bench:
    return Bench(backend, Store.open(tmp_path / "store"), [])


def gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_work_comes_back_as_commits_and_a_worker_ends_when_asked(bench: Bench) -> None:
    bench.start("a1")
    pid = bench.ready("a1")
    bench.give("a1", 0, 1)
    bench.until(lambda m: isinstance(m, Report) and len(bench.store.committed([CELL.cell_id])) == 2)
    bench.backend.stop("a1", hard=False)
    bench.lost("a1")
    assert gone(pid)
    committed = [c for m in bench.heard if isinstance(m, Report) for c in m.committed]
    assert len(committed) == len(set(committed)) == 2
    assert bench.store.campaign("job").live()[0]["state"] == "ready"


def test_a_killed_worker_is_noticed_and_its_name_can_be_followed_by_another(bench: Bench) -> None:
    bench.start("b1")
    pid = bench.ready("b1")
    bench.give("b1", 0, max_tokens=1900)
    os.kill(pid, signal.SIGKILL)
    assert bench.lost("b1", 20.0)
    bench.start("b2")
    bench.ready("b2")
    bench.backend.stop("b2", hard=True)
    bench.lost("b2")


def test_an_engine_that_never_answers_ends_its_process_and_says_so(bench: Bench) -> None:
    bench.start("c1", "never-answers", stuck_seconds=1.5)
    pid = bench.ready("c1")
    bench.give("c1", 0)
    assert bench.lost("c1", 20.0)
    assert gone(pid)
    (facts,) = bench.store.campaign("job").live()
    assert facts["state"] == "failed"
    assert "with 8 requests running" in facts["detail"]


def test_an_engine_that_cannot_start_reports_it(bench: Bench) -> None:
    bench.start("d1", "cannot-load")
    report = bench.until(lambda m: isinstance(m, Report) and m.state is WorkerState.FAILED)
    assert isinstance(report, Report)
    assert (report.detail, report.fatal) == ("model 'm' cannot be loaded: no such file", True)
    bench.backend.stop("d1", hard=True)
    bench.lost("d1")


def test_a_worker_that_hangs_while_loading_can_be_killed(bench: Bench) -> None:
    bench.start("e1", "hangs-at-start")
    bench.until(lambda m: isinstance(m, Report) and m.detail == "loading model")
    bench.backend.stop("e1", hard=True)
    bench.lost("e1", 20.0)
