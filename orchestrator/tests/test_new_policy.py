"""docs/new_policy.md: the page's own file and job are planned and generate (policies/tests has its selection)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator import models
from orchestrator.chunks import ChunkId
from orchestrator.grid import expand
from orchestrator.spec import JobSpec
from workers.transformers_engine.dense import DenseReference

PAGE = Path(__file__).parents[2] / "docs" / "new_policy.md"


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    """The page's two files in a folder."""
    blocks = dict(re.findall(r"```(python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    (tmp_path / "small_norm.py").write_text(blocks["python"])
    (tmp_path / "job.yaml").write_text(blocks["yaml"])
    return JobSpec.load(tmp_path / "job.yaml")


def test_the_page_counts_its_lines(job: JobSpec) -> None:
    code = [line for line in (job.folder / "small_norm.py").read_text().splitlines() if line.strip()]
    assert f"{len(code)} lines of code" in PAGE.read_text()


def test_the_pages_policy_is_planned(job: JobSpec) -> None:
    plan = expand(job)
    mine = [cell.cell.policy for cell in plan.cells if cell.cell.policy.source]
    assert [(policy.name, policy.params) for policy in mine] == [
        ("small_norm.py:SmallNorm", {"order": 2.0}),
        ("small_norm.py:SmallNorm", {"order": 1.0}),
    ]
    assert len({cell.cell_id for cell in plan.cells}) == 4


def test_the_pages_policy_generates(job: JobSpec) -> None:
    """On the dense reference, which attends as engines do after eviction; the rows are those of the page's job."""
    plan = expand(job)
    planned = next(cell for cell in plan.cells if cell.cell.policy.source)
    request = plan.build(ChunkId(planned.cell_id, 0, 0), 1).rows[0].request
    result = DenseReference(str(models.resolve("embedded:reasoner").path_on_disk)).generate(
        request.prompt_token_ids, request.eviction, 16, 340, ignore_end=True
    )
    assert result.events > 3
    assert result.positions is not None
    assert result.positions.shape[2] <= 264 + 16
