"""A scaled job keeps its arms and its compression, runs on the embedded model, and never mixes with the real one."""

from __future__ import annotations

import pytest

from orchestrator.errors import UserError
from orchestrator.grid import expand
from orchestrator.outline import OutlineResources
from orchestrator.scaling import MODEL, scaled
from orchestrator.spec import JobSpec

JOB = """
name: paper
models: [{path: Qwen/Qwen3-4B, max_model_len: 36864}, {path: Qwen/Qwen3-32B, max_model_len: 36864}]
tasks: [math500, aime]
arms:
  policies: [full, random, {name: recent, protection: none}]
  keep: [1024, 4096]
  interval: 64
exclude:
  - {task: math500, keep: 4096}
  - {task: aime, keep: 1024}
  - {model: Qwen/Qwen3-32B, task: aime, policy: recent}
sampling: {temperature: 0.6, top_p: 0.95, max_tokens: 32768}
samples: 16
resources: {tp: 2, gpu: H200}
"""


def test_arms_and_compression_stay_and_problems_and_samples_shrink() -> None:
    plan = expand(scaled(JobSpec.from_text(JOB), 0.125))
    assert plan.job.name == "paper-scale-0.125"
    seen = {(cell.cell.task.name, cell.cell.arm_label) for cell in plan.cells}
    # 1,024 of 4,096 tokens and 4,096 of 16,384: both about a quarter; what holds for one model holds for the stand-in.
    assert seen == {
        ("scaled_math500", "full"),
        ("scaled_math500", "random K64 r16 prompt"),
        ("scaled_math500", "recent K64 r16 none"),
        ("scaled_aime", "full"),
        ("scaled_aime", "random K238 r16 prompt"),
        ("scaled_aime", "recent K238 r16 none"),
    }
    sizes = {cell.cell.task.name: (cell.n_problems, cell.samples_max, cell.expected_tokens) for cell in plan.cells}
    assert sizes["scaled_math500"][:2] == (64, 2)
    assert sizes["scaled_aime"][:2] == (8, 2)
    for cell in plan.cells:
        budget = cell.cell.budget
        assert budget is None or 3.5 < cell.expected_tokens / budget.keep < 4.5
        assert budget is None or cell.expected_tokens > budget.keep + 3 * budget.interval
    assert {cell.cell.model.path for cell in plan.cells} == {MODEL}
    assert {cell.cell.protocol for cell in plan.cells} == {"scaled ours"}


def test_a_job_of_the_embedded_model_has_other_cells_when_scaled() -> None:
    text = """
name: demo
models: [{path: embedded:reasoner, max_model_len: 2048}]
tasks: [{name: reasoner_w, limit: 104}]
arms: {policies: [random], keep: 264, interval: 16}
sampling: {temperature: 0.6, max_tokens: 1500}
"""
    job = JobSpec.from_text(text)
    real, small = expand(job), expand(scaled(job, 0.5))
    assert {cell.cell_id for cell in real.cells}.isdisjoint(cell.cell_id for cell in small.cells)
    assert [cell.n_problems for cell in small.cells] == [56]
    assert small.job.source.text.startswith("# scaled: --scale 0.5\n")


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="at most 1"):
        scaled(JobSpec.from_text(JOB), share)


def test_an_outline_counts_without_models_or_data() -> None:
    plan = expand(JobSpec.from_text(JOB), OutlineResources())
    rows = {(c.cell.model.path, c.cell.task.name, c.cell.policy.name): c.n_problems * c.samples_max for c in plan.cells}
    assert len(rows) == 2 * 6 - 1
    assert rows["Qwen/Qwen3-4B", "math500", "random"] == 8000
    assert rows["Qwen/Qwen3-32B", "aime", "full"] == 960
