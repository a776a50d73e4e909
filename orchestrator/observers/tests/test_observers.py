"""Observers told by the scheduler's own answers in the hostile world of its tests."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.chunks import ChunkId
from orchestrator.errors import UserError
from orchestrator.messages import Action, Cause, Event, Pause, Release, Reported, Tick
from orchestrator.observers.crashes import CrashReports
from orchestrator.observers.event_log import EventLog
from orchestrator.observers.metrics import Metrics
from orchestrator.store.tests.stores import Arm, build_store
from orchestrator.tests.scheduler_world import World, planned, ready, world_with
from workers.api import Provenance


class Watched(World):
    """The world with an observer beside it."""

    def __init__(self, *observers: EventLog | CrashReports | Metrics) -> None:
        super().__init__()
        self.observers = observers

    def tell(self, event: Event) -> list[Action]:
        actions: Sequence[Action] = super().tell(event)
        for observer in self.observers:
            observer.saw(event, actions, self.state.books)
        return list(actions)


def watch(world: World, *observers: EventLog | CrashReports | Metrics) -> Watched:
    """A world that begins observed: its first events are told again."""
    watched = Watched(*observers)
    watched.__dict__.update({key: value for key, value in world.__dict__.items() if key != "observers"})
    for observer in observers:
        observer.saw(Tick(0.0), world.log, world.state.books)
    return watched


def fail(world: World, chunk: ChunkId, reason: str) -> None:
    process = world.processes["e0001"]
    process.released.append(Release(chunk, process.held.pop(chunk), Cause.RETRYABLE, reason))


def test_the_event_log_names_chunk_engine_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    world = watch(world_with([planned("c", block) for block in range(2)]), EventLog(path, "job", "e1"))
    ready(world, "e0001")
    first, second = sorted(world.processes["e0001"].held, key=lambda chunk: chunk.block)
    world.commit("e0001", first)
    fail(world, second, "lost a tile")
    world.report("e0001")
    world.tell(Pause(1.0))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["campaign"], line["driver"]) for line in lines} == {("job", "e1")}
    assert [line["event"] for line in lines][:4] == ["engine_start", "assigned", "assigned", "committed"]
    failed = next(line for line in lines if line["event"] == "failed")
    assert (failed["cell_id"], failed["chunk"], failed["engine"]) == ("c", second.name, "e0001")
    assert (failed["attempt"], failed["cause"], failed["reason"]) == (1, "retryable", "lost a tile")
    assert "pause" in [line["event"] for line in lines]


def test_an_event_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    world = watch(world_with([planned("c", 0)]), EventLog(tmp_path / "missing" / "events.jsonl", "job", "e1"))
    assert ready(world, "e0001")


def test_a_crash_report_says_what_the_engine_was_doing_and_its_last_words(tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "e0001.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    crashes = CrashReports(tmp_path / "crashes", lambda worker: tmp_path / f"{worker}.log", said.append)
    world = watch(world_with([planned("c", block) for block in range(2)]), crashes)
    ready(world, "e0001")
    world.gone("e0001", "killed by signal 9")
    text = (tmp_path / "crashes" / "e0001.txt").read_text()
    assert "reason     killed by signal 9" in text
    assert "spec       model = " in text
    assert "no token was made" in text
    assert text.endswith("line 98\nline 99\n")
    assert "line 39\n" not in text
    assert said == [f"engine e0001 ended: killed by signal 9; report: {tmp_path / 'crashes' / 'e0001.txt'}"]


def test_a_crash_report_names_the_physical_gpus(tmp_path: Path) -> None:
    crashes = CrashReports(tmp_path / "crashes", lambda worker: tmp_path / worker, lambda text: None)
    world = watch(world_with([planned("c", 0)]), crashes)
    report = replace(world.write("e0001"), provenance=Provenance("e0001", "vllm", {}, "v1", "full", "H200", "n", 42))
    assert report.provenance is not None
    given = replace(report, provenance=replace(report.provenance, extra={"gpus": ("GPU-1", "GPU-2")}))
    world.tell(Reported(given, 0.0))
    world.gone("e0001")
    assert "device     H200, GPU-1, GPU-2" in (tmp_path / "crashes" / "e0001.txt").read_text()


def test_an_engine_that_was_asked_to_end_is_no_crash(tmp_path: Path) -> None:
    crashes = CrashReports(tmp_path / "crashes", lambda worker: tmp_path / worker, lambda text: None)
    world = watch(world_with([planned("c", 0)]), crashes)
    world.run_out()
    assert not (tmp_path / "crashes").exists()


def test_metrics_count_rows_evictions_attempts_and_idle_seconds(tmp_path: Path) -> None:
    store = build_store(tmp_path, [Arm("random", "1" * 8)])
    (cell_dir,) = store.paths.generations.iterdir()
    chunk = ChunkId(cell_dir.name, 0, 0)
    cells = {chunk.cell_id: _Cell("random")}
    metrics = Metrics("job", store.paths, cells.__getitem__)  # type: ignore[arg-type]
    world = watch(world_with([replace(planned("c", 0), chunk=chunk), planned("c", 1)]), metrics)
    cells["c"] = _Cell("other")
    ready(world, "e0001")
    world.commit("e0001", chunk)
    fail(world, ChunkId("c", 0, 1), "no")
    world.report("e0001")
    world.tell(Tick(5.0))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"campaign": "job", **labels})

    assert value("evictbench_rows_total", policy="random") == 8
    assert value("evictbench_evictions_total", policy="random") == _sum(store.paths.generation(chunk), "events")
    assert value("evictbench_failed_attempts_total", cause="retryable") == 1
    assert value("evictbench_engine_starts_total") == 1
    assert value("evictbench_chunks", status="committed") == 1
    assert value("evictbench_engine_seconds_total", state="idle") is not None
    assert value("evictbench_prompt_kept_count", policy="random") == 8


def test_metrics_are_scraped_on_loopback_and_a_taken_port_is_refused(tmp_path: Path) -> None:
    store = build_store(tmp_path, [Arm("random", "1" * 8)])
    metrics = Metrics("job", store.paths, _Cell)  # type: ignore[arg-type]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.listen()
        with pytest.raises(UserError, match=rf"metrics cannot be served on 127\.0\.0\.1:{port}"):
            metrics.serve("127.0.0.1", port)
    metrics.serve("127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert b"evictbench_engine_starts_total" in answer.read()


class _Policy:
    def __init__(self, name: str) -> None:
        self.name = name


class _Cell:
    def __init__(self, policy: str) -> None:
        self.policy = _Policy(policy)


def _sum(path: Path, column: str) -> int:
    return sum(pq.read_table(path, columns=[column])[column].to_pylist())
