"""`evictbench status` from a store that a campaign left behind."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.messages import Assignment, Order
from orchestrator.store.campaign import Campaign
from orchestrator.store.rows import plan_row
from orchestrator.store.writer import Store
from orchestrator.tests.doubles import CELL, SPEC, create, work
from orchestrator.worker_loop import WorkerLoop


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three chunks planned: one committed, one parked, one open."""
    store = Store.open(tmp_path / "store")
    campaign = store.campaign("nightly")
    campaign.submit("name: nightly", {"name": "nightly"}, {}, [plan_row(CELL, 24, 1, 1, 200.0)])
    loop = WorkerLoop("e1", SPEC, store, lambda facts: None)
    loop.start(create)
    loop.order(Order((Assignment(CELL, work(0)),)))
    while not store.committed([CELL.cell_id]):
        loop.report(0.1)
    loop.close()
    for attempt, parked in ((1, False), (2, False), (3, True)):
        facts = {"reason": "engine process killed by SIGKILL", "parked": parked, "cause": "retryable"}
        campaign.record_attempt(work(1).chunk, attempt, facts)
    campaign.record_attempt(work(0).chunk, 1, {"reason": "long ago", "parked": True, "cause": "retryable"})
    beat(campaign, "e2", 2.0)
    beat(campaign, "e3", 500.0)
    return store


def beat(campaign: Campaign, engine: str, age: float) -> None:
    at = (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
    campaign.heartbeat(engine, {"detail": "running", "running": 64, "generated_tokens": 12345, "updated_at": at})


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["status", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_a_table_of_every_campaign(store: Store) -> None:
    code, output = run("--store", str(store.paths.root))
    assert code == 0
    assert "nightly: 1/3 chunks committed" in output
    assert "parked: m t random K64 r16 prompt: 1 chunk: engine process killed by SIGKILL" in output
    assert "long ago" not in output, "what was committed since is not parked"
    lines = {line.split()[0]: line for line in output.splitlines() if line.split()}
    # A loaded machine takes its time between the heartbeat and the reading of it.
    assert re.search(r"\b\d\d? s ago", lines["e2"])
    assert "probably dead" not in lines["e2"]
    assert re.search(r"\b5\d\d s ago, probably dead", lines["e3"])


def test_json_for_programs(store: Store) -> None:
    code, output = run("--store", str(store.paths.root), "--format", "json")
    assert code == 0
    (status,) = json.loads(output)
    assert status["cells"] == [{"label": CELL.label, "cell_id": CELL.cell_id, "done": 1, "planned": 3}]
    assert status["attempts_failed"] == 4
    assert [engine["engine_id"] for engine in status["engines"]] == ["e2", "e3"]


def test_samples_that_stop_early_are_said(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    samples = {"min": 2, "max": 8, "until_width": 4.0}
    plan = [plan_row(CELL, 24, 2, 2, 200.0)]
    store.campaign("nightly").submit("name: nightly", {"name": "nightly", "samples": samples}, {}, plan)
    _, output = run("--store", str(tmp_path / "s"))
    said = "samples so far: 2 of at most 8 (until every interval is within 4 points); 75 % of the rows not asked for"
    assert said in output


def test_a_directory_that_is_no_store_is_named(tmp_path: Path) -> None:
    code, output = run("--store", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} is no store" in output
