"""The paper's jobs: their size as published, and that each can be tried in small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.grid import Plan, expand
from orchestrator.models import EMBEDDED_DIR
from orchestrator.outline import OutlineResources
from orchestrator.scaling import scaled
from orchestrator.spec import JobSpec
from orchestrator.store.reader import Reader

PAPER = EMBEDDED_DIR.parent / "paper"
JOBS = sorted(file for file in PAPER.glob("*.yaml") if not file.name.startswith("probes"))


def _arms(plan: Plan) -> set[tuple[str, str, str]]:
    """(task, policy, protection), with the name of the problem set that a scaled task stands for."""
    return {
        (
            planned.cell.task.name.removeprefix("scaled_"),
            planned.cell.policy.name,
            str(planned.cell.protection),
        )
        for planned in plan.cells
    }


@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_every_job_is_planned_whole_and_in_small_with_the_same_arms(file: Path) -> None:
    job = JobSpec.load(file)
    whole, small = expand(job, OutlineResources()), expand(scaled(job, 0.01))
    assert job.protocol == "published"
    assert _arms(whole) == _arms(small)
    assert all(cell.n_problems * cell.samples_max >= 30 for cell in whole.cells)
    assert all(cell.n_problems * cell.samples_max <= 8 for cell in small.cells)


def test_the_accuracy_grid_has_the_published_size() -> None:
    plan = expand(JobSpec.load(PAPER / "accuracy.yaml"), OutlineResources())
    rows = {}
    for cell in plan.cells:
        rows[cell.cell.task.name] = cell.n_problems * cell.samples_max
    assert len(plan.cells) == 4 * 5 * 6
    assert rows == {"math500": 1000, "gpqa_diamond": 792, "aime": 960, "hmmt": 960, "livecodebench": 1532}


@pytest.mark.slow
def test_a_paper_job_runs_end_to_end_in_small(tmp_path: Path) -> None:
    job, store = str(PAPER / "draws_qwen3_4b_math500.yaml"), str(tmp_path / "store")
    common = [sys.executable, "-m", "orchestrator"]
    subprocess.run(
        [*common, "run", job, "--scale", "0.01", "--backend", "local", "--store", store], check=True, timeout=1800
    )
    cells = Reader(tmp_path / "store").cells()
    assert len(cells) == 13
    shown = subprocess.run([*common, "report", store], check=True, timeout=300, capture_output=True, text=True).stdout
    assert "random_block(block=256)" in shown.replace("\n", "")
