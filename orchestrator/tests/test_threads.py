"""docs/threads.md: every public bug thread of the field has a test here that exists; those that no other file holds."""

from __future__ import annotations

import ast
import os
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from infra.bench.scheduler import Fleet, plans
from orchestrator import campaign
from orchestrator.backend_local import LocalBackend
from orchestrator.chunks import ChunkId
from orchestrator.ledger import Status
from orchestrator.messages import Added, Assign, NodeUp, Report, Reported, Retry, StartEngine, WorkerState
from orchestrator.tests.e2e.harness import Site
from orchestrator.tests.scheduler_world import planned, ready, started, world_with

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threads.md"
THREADS = 41
# Graders' children: they end when their standard input does, and hold no GPU.
OWN_SESSIONS = {"orchestrator/tasks/code/sandbox.py", "orchestrator/tasks/graders/symbolic.py"}


def rows() -> dict[int, list[tuple[str, str]]]:
    """Tests by number of the thread: path and name."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"\| (\d+) \|", line):
            found[int(match[1])] = re.findall(r"`([\w/]+\.py)::(\w+)`", line.rsplit("|", 2)[1])
    return found


def test_every_thread_has_a_test_that_exists() -> None:
    table = rows()
    assert sorted(table) == list(range(1, THREADS + 1))
    for number, tests in table.items():
        assert tests, f"thread {number} names no test"
        for path, name in tests:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"thread {number}: {path}::{name}"


def calls(*packages: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call in the packages, tests apart, with its file."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/tests/" not in name:
                yield from ((name, n) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))


def test_no_process_that_may_hold_a_gpu_leaves_its_group_and_no_actor_is_detached() -> None:
    for path, call in calls("workers", "orchestrator"):
        keywords = {keyword.arg for keyword in call.keywords}
        assert "lifetime" not in keywords, path
        assert "setsid" not in ast.unparse(call.func), path
        assert "start_new_session" not in keywords or path in OWN_SESSIONS, path


def test_every_wait_on_ray_has_a_deadline() -> None:
    waits = [
        (path, call)
        for path, call in calls("orchestrator")
        if ast.unparse(call.func) in ("ray.get", "ray.wait") and path.startswith("orchestrator/")
    ]
    assert len(waits) >= 4
    for path, call in waits:
        assert "timeout" in {keyword.arg for keyword in call.keywords}, f"{path}:{call.lineno}"


def test_a_submission_ships_files_and_installs_nothing() -> None:
    (environment,) = [
        keyword.value
        for path, call in calls("orchestrator")
        for keyword in call.keywords
        if keyword.arg == "runtime_env"
    ]
    assert isinstance(environment, ast.Dict)
    assert [ast.unparse(key) for key in environment.keys if key is not None] == ["'working_dir'"]


def test_sixteen_samples_of_many_arms_load_one_engine() -> None:
    plans_of_all = [
        replace(planned(f"arm{arm}", 0, arm=arm), chunk=ChunkId(f"arm{arm}", sample, 0))
        for arm in range(12)
        for sample in range(16)
    ]
    world = world_with(plans_of_all)
    world.run_out()
    assert len(started(world.log)) == 1


def test_engines_of_a_node_start_two_at_a_time() -> None:
    world = world_with([planned("c", b) for b in range(64)], units=8)
    assert len(started(world.log)) == 2
    ready(world, "e0001")
    assert len(started(world.log)) == 3
    ready(world, "e0002")
    ready(world, "e0003")
    assert len(started(world.log)) == 5


def test_the_next_cells_rows_enter_before_the_last_one_has_ended() -> None:
    world = world_with([replace(planned("long", 0), group="a"), *(planned("next", b) for b in range(4))])
    ready(world, "e0001")
    held = {chunk.cell_id for chunk in world.processes["e0001"].held}
    assert held == {"long", "next"}
    assert sum(isinstance(action, StartEngine) for action in world.log) == 1
    assert any(isinstance(action, Assign) and len(action.chunks) > 1 for action in world.log)


def test_the_drivers_memory_grows_with_chunks_alone_and_every_decision_is_short() -> None:
    work, fleet = plans(4000, models=4, arms=12), Fleet()
    tracemalloc.start()
    for node in range(4):
        fleet.tell(NodeUp(f"node{node}", 8, 0.0))
    fleet.tell(Added(work, 0.0))
    begun = tracemalloc.get_traced_memory()[0]
    for now in range(1, 4000):
        if fleet.state.finished:
            break
        fleet.turn(float(now))
    ended = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert fleet.state.books.committed == 4000
    assert begun / 4000 < 4096
    assert ended < begun * 1.1


def test_retry_gives_parked_chunks_all_their_attempts_again() -> None:
    world = world_with([planned("c", 0)])
    world.tell(Reported(Report("e0001", 1, WorkerState.FAILED, detail="no such model", fatal=True), 0.0))
    world.gone("e0001")
    entry = world.state.books.chunks[ChunkId("c", 0, 0)]
    assert (entry.status, world.state.finished) == (Status.PARKED, True)
    world.tell(Retry(1.0))
    world.run_out()
    assert (entry.status, entry.failures) == (Status.COMMITTED, 0)


@pytest.mark.slow
def test_resuming_on_another_number_of_engines_makes_only_what_is_missing(tmp_path: Path) -> None:
    site = Site(tmp_path, limit=16)
    console = Console(file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    assert campaign.run(site.job, console, LocalBackend) == 0
    before = site.rows()
    chunks = site.chunks()
    for path in chunks[::2]:
        path.unlink()
    kept = {path: path.stat().st_mtime_ns for path in chunks[1::2]}
    assert campaign.run(site.job, console, lambda: LocalBackend(places=3)) == 0
    assert site.rows() == before
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert campaign.run(site.job, console, lambda: pytest.fail("nothing is missing")) == 0
