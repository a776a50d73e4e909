"""The paper's jobs hold what the paper ran, and each expands in small on the embedded model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from orchestrator.grid import expand
from orchestrator.outline import OutlineResources
from orchestrator.scaling import scaled
from orchestrator.spec import JobSpec

FILES = sorted((Path(__file__).parents[2] / "jobs" / "paper").glob("*.yaml"))
JOBS = [path for path in FILES if not path.stem.startswith("probes")]
# Rows a model and arm make of each task: problems times published samples.
ROWS = {"math500": 1000, "gpqa_diamond": 792, "aime": 960, "hmmt": 960, "livecodebench": 1532}
KEEPS = {"math500": 1024, "gpqa_diamond": 2048, "aime": 4096, "hmmt": 4096, "livecodebench": 3072}
# Cells by model, of Tables 1 and 5; 2 and 6 (random, recent, vase, rkv and snapkv with and without protection).
ACCURACY = {"Qwen3-4B": 30, "Phi-4-reasoning": 30, "Qwen3-32B": 30, "Qwen3-14B": 30}
PROTECTION = {"Qwen3-4B": 2 * 11 + 3 * 8, "Phi-4-reasoning": 2 * 11 + 8, "Qwen3-32B": 8}


@pytest.mark.parametrize(("name", "expected"), [("accuracy", ACCURACY), ("protection", PROTECTION)])
def test_grids_are_the_published_ones(name: str, expected: dict[str, int]) -> None:
    job = next(path for path in JOBS if path.stem == name)
    plan = expand(JobSpec.load(job), OutlineResources())
    assert Counter(cell.cell.model.path.rsplit("/")[-1] for cell in plan.cells) == expected
    for planned in plan.cells:
        task, budget = planned.cell.task.name, planned.cell.budget
        assert planned.n_problems * planned.samples_max == ROWS[task]
        assert budget is None or (budget.keep, budget.interval) == (KEEPS[task], 64)
        # Prompt and answer share 32,768 tokens; top_k is off; Phi is sampled hotter, as its makers advise.
        sampling = planned.cell.sampling
        assert (sampling.max_tokens, sampling.top_k) == (32_768, 0)
        assert sampling.temperature == (0.8 if "Phi" in planned.cell.model.path else 0.6)
        assert planned.cell.protocol == "published"


def test_lengths_come_from_the_cells_of_the_accuracy_grid() -> None:
    ids = [
        {cell.cell_id for cell in expand(JobSpec.load(path), OutlineResources()).cells}
        for path in JOBS
        if path.stem in ("accuracy", "generation_length")
    ]
    assert len(ids) == 2
    assert ids[0] == ids[1]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_job_runs_in_small(path: Path) -> None:
    small = expand(scaled(JobSpec.load(path), 0.01))
    real = expand(JobSpec.load(path), OutlineResources())
    arms = {(cell.cell.task.name, cell.cell.policy.name, cell.cell.protection) for cell in real.cells}
    assert {(f"scaled_{task}", *rest) for task, *rest in arms} == {
        (cell.cell.task.name, cell.cell.policy.name, cell.cell.protection) for cell in small.cells
    }
    assert any(cell.cell.budget and cell.cell.budget.keep < cell.expected_tokens / 2 for cell in small.cells)
    assert sum(cell.n_problems * cell.samples_max for cell in small.cells) < 1000
