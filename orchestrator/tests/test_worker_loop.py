"""A worker's life with a real engine thread and a real store: rows arrive whole, faults arrive with their reason."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.chunks import ChunkId
from orchestrator.environment import git_revision
from orchestrator.messages import Assignment, Cause, Order, Release, Report, WorkerState, capacity
from orchestrator.store.writer import Store
from orchestrator.tests.doubles import CELL, QUICK, SPEC, create, work
from orchestrator.worker_loop import WorkerLoop, judge
from workers.api import Generation
from workers.simulated import SimulatedEngine


class Worker:
    """A loop with everything it ever reported."""

    def __init__(self, store: Store, fault: str = "none") -> None:
        spec = replace(SPEC, model=fault)
        self.reports: list[Report] = []
        self.loop = WorkerLoop("e1", spec, store, lambda facts: None)
        self.loop.start(create)

    def give(self, *blocks: int, max_tokens: int = 200) -> None:
        self.loop.order(Order(tuple(Assignment(CELL, work(b, max_tokens=max_tokens)) for b in blocks)))

    def listen(self, until: int, seconds: float = 20.0) -> None:
        """Collect reports until so many chunks were committed or released."""
        deadline = time.monotonic() + seconds
        while len(self.committed) + len(self.released) < until:
            assert time.monotonic() < deadline, self.reports[-1:]
            self.reports.append(self.loop.report(0.2))

    @property
    def committed(self) -> list[ChunkId]:
        return [chunk for report in self.reports for chunk in report.committed]

    @property
    def released(self) -> list[Release]:
        return [release for report in self.reports for release in report.released]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def worker(store: Store) -> Iterator[Worker]:
    worker = Worker(store)
    yield worker
    worker.loop.close()


def test_chunks_are_committed_whole_and_reported_once(store: Store, worker: Worker) -> None:
    worker.give(0, 1)
    worker.give(2)
    worker.listen(3)
    assert sorted(c.block for c in worker.committed) == [0, 1, 2]
    assert store.committed([CELL.cell_id]) == set(worker.committed)
    rows = [row for c in worker.committed for row in pq.read_table(store.paths.generation(c)).to_pylist()]
    assert sorted(row["row_id"] for row in rows) == sorted(f"{CELL.cell_id}/p{p}/0" for p in range(24))
    assert all(row["events"] == row["expected_events"] > 0 for row in rows)
    assert {row["engine_kind"] for row in rows} == {"simulated"}
    assert {row["git_revision"].rstrip("+") for row in rows} == {git_revision().rstrip("+")}
    final = worker.loop.report(0.0)
    assert (final.accepted, final.wants, final.committed) == (3, capacity(SPEC), ())


def test_rows_do_not_depend_on_what_else_runs(store: Store, tmp_path: Path) -> None:
    texts = []
    for number, blocks in enumerate([(0,), (2, 1, 0)]):
        own = Store.open(tmp_path / f"s{number}")
        worker = Worker(own)
        worker.give(*blocks)
        worker.listen(len(blocks))
        worker.loop.close()
        table = pq.read_table(own.paths.generation(ChunkId(CELL.cell_id, 0, 0)), columns=["row_id", "text", "n_output"])
        texts.append(sorted(map(str, table.to_pylist())))
    assert texts[0] == texts[1]


def test_the_loser_of_a_race_discards_its_rows(store: Store, worker: Worker) -> None:
    other = Worker(store)
    for one in (worker, other):
        one.give(0)
    for one in (worker, other):
        one.listen(1)
    other.loop.close()
    assert worker.committed == other.committed == [ChunkId(CELL.cell_id, 0, 0)]
    assert len(pq.read_table(store.paths.generation(worker.committed[0]))) == 8


@pytest.mark.parametrize(
    ("fault", "cause", "reason"),
    [
        ("does-not-evict", Cause.INVALID, "policy not active as asked: random made 0 events, the formula says"),
        ("preempts", Cause.RETRYABLE, "preempted 1 times under eviction"),
    ],
)
def test_a_row_that_its_policy_did_not_make_is_never_committed(
    store: Store, fault: str, cause: Cause, reason: str
) -> None:
    worker = Worker(store, fault)
    worker.give(0)
    worker.listen(1)
    worker.loop.close()
    (release,) = worker.released
    assert (release.cause, reason in release.reason) == (cause, True)
    assert not store.committed([CELL.cell_id])


@pytest.mark.parametrize(
    ("fault", "fatal", "detail"),
    [
        ("cannot-load", True, "model 'm' cannot be loaded: no such file"),
        ("no-memory", False, "pool does not fit"),
        ("raises", False, "RuntimeError: the engine core is gone"),
    ],
)
def test_a_failed_engine_says_why(store: Store, fault: str, fatal: bool, detail: str) -> None:
    worker = Worker(store, fault)
    worker.give(0)
    deadline = time.monotonic() + 10
    while (report := worker.loop.report(0.1)).state is not WorkerState.FAILED:
        assert time.monotonic() < deadline
    worker.loop.close()
    assert (report.fatal, report.detail) == (fatal, detail)


def test_a_request_that_can_never_run_parks_its_chunk_and_no_other(store: Store, worker: Worker) -> None:
    worker.give(0, max_tokens=5000)
    worker.give(1)
    worker.listen(2)
    assert [(r.chunk.block, r.cause) for r in worker.released] == [(0, Cause.FATAL)]
    assert [c.block for c in worker.committed] == [1]


def test_draining_gives_back_what_has_not_started_and_finishes_the_rest(store: Store) -> None:
    slow = replace(QUICK, step=5e-3)
    worker = Worker.__new__(Worker)
    worker.reports = []
    worker.loop = WorkerLoop("e1", SPEC, store, lambda facts: None)
    worker.loop.start(lambda spec: SimulatedEngine(spec, slow))
    worker.give(0, 1, 2, 3)
    while len(worker.loop.report(0.1).unstarted) != 2:
        pass
    worker.loop.order(Order(drain=True))
    worker.listen(4)
    worker.loop.close()
    assert sorted(c.block for c in worker.committed) == [0, 1]
    assert sorted((r.chunk.block, r.cause) for r in worker.released) == [(2, Cause.RETURNED), (3, Cause.RETURNED)]
    assert worker.reports[-1].wants == 0


def test_only_unstarted_chunks_can_be_withdrawn(store: Store, worker: Worker) -> None:
    worker.give(0, 1, 2, max_tokens=1500)
    while not (report := worker.loop.report(0.1)).unstarted:
        pass
    assert report.counters.running == SPEC.max_num_seqs
    chunks = [ChunkId(CELL.cell_id, 0, block) for block in (0, 2, 9)]
    worker.loop.order(Order(withdraw=tuple(chunks)))
    worker.listen(3)
    assert sorted(c.block for c in worker.committed) == [0, 1]
    assert [(r.chunk.block, r.cause) for r in worker.released] == [(2, Cause.RETURNED)]


def test_a_full_disk_parks_the_chunk_with_the_reason(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def full(*_: object) -> None:
        tries.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Store, "commit_chunk", full)
    monkeypatch.setattr("orchestrator.worker_loop.time.sleep", lambda seconds: None)
    worker = Worker(store)
    worker.give(0)
    worker.listen(1)
    worker.loop.close()
    (release,) = worker.released
    assert (release.cause, release.reason) == (
        Cause.FATAL,
        "the store cannot be written: No space left on device",
    )
    assert len(tries) == 3


def test_judge_accepts_full_rows_without_trace_and_refuses_aborted_ones() -> None:
    engine = SimulatedEngine(SPEC, QUICK, sleep=lambda seconds: None)
    row = work(0).rows[0]
    plain = replace(row, request=replace(row.request, eviction=None))
    engine.submit([plain.request])
    generations: list[Generation] = []
    while not generations:
        generations = engine.step()
    (generation,) = generations
    assert judge(plain, generation) is None
    assert judge(row, generation) == (
        Cause.INVALID,
        "p0@1: policy not active: random was asked for, and there is no trace",
    )
    aborted = judge(plain, replace(generation, finish_reason="abort"))
    assert aborted is not None
    assert aborted[0] is Cause.RETRYABLE
