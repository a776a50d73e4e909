"""Submitting, comparing and recording a campaign, without starting anything."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator import campaign
from orchestrator.backend import Backend
from orchestrator.chunks import ChunkId
from orchestrator.errors import UserError
from orchestrator.tests.e2e.harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_differences_name_paths_and_both_values() -> None:
    old = {"arms": {"keep": [264], "mode": "total", "n_sink": None}, "samples": 1}
    new = {"arms": {"keep": [264, 300], "mode": "plus_buffer"}, "samples": 1}
    assert campaign.differences(old, new) == ["arms.keep[1]: absent -> 300", "arms.mode: total -> plus_buffer"]
    assert campaign.differences(new, new) == []
    many = campaign.differences({}, {f"key{n}": n for n in range(20)})
    assert (len(many), many[-1]) == (13, "and 8 more")


def test_submitting_records_the_job_and_says_nothing_the_first_time(site: Site) -> None:
    prepared = campaign.prepare(site.job)
    assert len(prepared.missing) == 9
    assert campaign.submit(prepared) == []
    files = prepared.campaign
    assert files.spec() == site.job.read_text()
    assert files.plan().num_rows == 3
    assert files.environment()["packages"]["evictbench"]
    site.policies = "random"
    site.max_tokens = 100
    changes = campaign.submit(campaign.prepare(site.job))
    assert "sampling.max_tokens: 200 -> 100" in changes
    assert changes[-1] == "1 new cells, 0 as before, 3 no longer in the job (their rows stay in the store)"


def test_work_starts_a_backend_and_a_backend_that_cannot_start_is_a_user_error(site: Site) -> None:
    def connect() -> Backend:
        raise UserError("Ray cannot use the cluster at 192.0.2.1:1")

    with pytest.raises(UserError, match="Ray cannot use the cluster"):
        campaign.run(site.job, Console(file=io.StringIO()), connect)
    assert site.chunks() == []


def test_parked_chunks_are_listed_by_cell_and_reason(site: Site) -> None:
    plan = campaign.prepare(site.job).plan
    full, random, _ = plan.cells
    parked = {ChunkId(full.cell_id, 0, block): "no such model" for block in range(2)}
    parked[ChunkId(random.cell_id, 0, 2)] = "killed"
    assert campaign.parked_lines(plan, parked) == [
        f"{full.cell.label}: 2 chunks (16 rows): no such model",
        f"{random.cell.label}: 1 chunk (8 rows): killed",
    ]
