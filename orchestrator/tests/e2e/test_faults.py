"""Campaigns that are killed, stopped, doubled and starved, as real processes: the store always ends whole."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from orchestrator.tests.e2e.harness import Site, kill

BACKENDS = pytest.mark.parametrize("backend", ["local", "ray"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@BACKENDS
def test_a_killed_engine_worker_is_replaced_within_the_run(site: Site, backend: str) -> None:
    process = site.start("--backend", backend)
    site.until(lambda: site.engines() and site.chunks(), process)
    committed = len(site.chunks())
    kill(site.engines()[0])
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert committed < 9, "nothing was in flight"
    assert {attempt["parked"] for attempt in site.attempts()} == {False}
    assert "will be tried again: engine process" in output
    site.check_complete()


@BACKENDS
def test_a_killed_driver_leaves_no_process_and_the_same_command_goes_on(site: Site, backend: str) -> None:
    process = site.start("--backend", backend)
    site.until(lambda: len(site.chunks()) >= 2, process)
    kill(process.pid)
    process.wait()
    assert site.leftovers() == []
    before = {path: path.stat().st_mtime_ns for path in site.chunks()}
    assert 2 <= len(before) < 9
    status, output = site.run("--backend", backend)
    assert status == 0, output
    assert f"{len(before)} chunks in {site.store}, {9 - len(before)} to run" in output
    assert {path: path.stat().st_mtime_ns for path in before} == before
    site.check_complete()


def test_ctrl_c_drains_and_a_second_one_is_not_needed(site: Site) -> None:
    process = site.start()
    site.until(lambda: len(site.chunks()) >= 2, process)
    os.killpg(process.pid, signal.SIGINT)  # the whole group, as a terminal does
    output, _ = process.communicate(timeout=40)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert re.search(r"Stopped \(interrupted\) with \d chunks to run", output)
    assert site.attempts() == []
    assert site.leftovers() == []
    status, output = site.run("--backend", "local")
    assert status == 0, output
    site.check_complete()


def test_a_second_ctrl_c_stops_at_once(site: Site) -> None:
    site.max_tokens = 1900
    process = site.start("--backend", "local")
    site.until(site.engines, process)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1.0)  # a pending signal swallows an equal one
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130
    assert site.leftovers() == []


def test_two_drivers_on_one_store_make_every_row_once(site: Site) -> None:
    drivers = [site.start("--backend", "local") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in drivers]
    assert [process.returncode for process in drivers] == [0, 0], outputs
    site.check_complete()


def test_an_engine_that_cannot_start_parks_its_cells_and_the_others_go_on(site: Site) -> None:
    process = site.start_with("orchestrator.tests.doubles:full_cannot_load")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    reason = "model 'm' cannot be loaded: no such file"
    assert f"parked: reasoner reasoner_w full: 3 chunks (24 rows): {reason}" in output
    assert len(site.rows()) == 48
    status = site.spawn([sys.executable, "-m", "orchestrator", "status", str(site.job)]).communicate(timeout=30)[0]
    assert f"parked: reasoner reasoner_w full: 3 chunks: {reason}" in status
    assert "6/9 chunks committed" in status
    rerun = site.run("--backend", "local")
    assert rerun[0] == 0, rerun[1]
    site.check_complete()


def test_an_engine_that_never_answers_is_replaced_until_its_chunk_is_parked(site: Site) -> None:
    site.limit, site.policies = 8, "random"
    process = site.start_with("orchestrator.tests.doubles:never_answers", stuck_seconds=1.0)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert re.search(r"parked: .*1 chunk \(8 rows\): no token for \d+ s with 8 requests running", output)
    assert [attempt["attempt"] for attempt in sorted(site.attempts(), key=lambda a: a["attempt"])] == [1, 2, 3]
    assert site.leftovers() == []


def test_rows_of_an_inactive_policy_are_refused(site: Site) -> None:
    site.limit, site.max_tokens = 8, 300  # long enough that events are due
    process = site.start_with("orchestrator.tests.doubles:does_not_evict")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert {path.parent.name for path in site.chunks()} == {re.escape(row.split("/")[0]) for row in site.rows()}
    assert len(site.rows()) == 8, "only full may have rows"
    assert "policy not active as asked: random made 0 events" in output


def test_a_disk_that_fills_up_parks_with_the_reason(site: Site) -> None:
    site.limit, site.policies = 8, "random"
    process = site.start_with("orchestrator.tests.doubles:small_disk")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    assert "1 chunk (8 rows): the store cannot be written: File too large" in output, output
    assert site.chunks() == []


def test_a_finished_job_says_so_without_ray_or_torch(site: Site) -> None:
    assert site.run("--backend", "local")[0] == 0
    script = (
        "import sys; from orchestrator.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: print('status', end.code, sorted({'ray', 'torch', 'vllm'} & set(sys.modules)))"
    )
    process = site.spawn([sys.executable, "-c", script, "run", str(site.job)])
    output, _ = process.communicate(timeout=30)
    assert "all 72 rows are in" in output
    assert "status 0 []" in output


def test_a_grown_job_runs_only_what_is_new_and_says_what_changed(site: Site) -> None:
    site.policies = "random"
    assert site.run("--backend", "local")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in site.chunks()}
    site.limit, site.policies = 32, "random, recent"
    status, output = site.run("--backend", "local")
    assert status == 0, output
    assert "changed: tasks[0].limit: 24 -> 32" in output
    assert "changed: 1 new cells, 1 as before, 0 no longer in the job" in output
    assert {path: path.stat().st_mtime_ns for path in before} == before
    site.check_complete(cells=2)


def test_a_store_that_cannot_be_made_is_refused_before_anything_starts(site: Site) -> None:
    status, output = site.run("--store", "/proc/no-store")
    assert status == 2
    assert "/proc/no-store" in output
    assert "Traceback" not in output
