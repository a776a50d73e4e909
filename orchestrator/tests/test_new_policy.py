"""docs/new_policy.md: the page's own file and job are planned, select, and generate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from orchestrator import models
from orchestrator.chunks import ChunkId
from orchestrator.grid import expand
from orchestrator.spec import JobSpec
from policies import registry
from policies.base import Scorer
from policies.draws import Draw
from policies.select import select
from policies.view import CacheView
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


def test_the_pages_policy_keeps_the_smallest_norms(job: JobSpec) -> None:
    policy = registry.build(f"{job.folder / 'small_norm.py'}:SmallNorm", {})
    assert isinstance(policy, Scorer)
    keys = torch.randn(2, 3, 20, 8, generator=torch.Generator().manual_seed(1))
    view = CacheView(
        shape=(2, 3, 20), prot=4, recent=6, n_select=5, t=20, layers=(0, 1), heads=(0, 1, 2),
        draw=Draw(0, 0, (0, 1), (0, 1, 2)), keys=keys,
    )  # fmt: skip
    kept = select(policy, view)
    for layer in range(2):
        for head in range(3):
            norms = keys[layer, head, 4:14].norm(dim=1)
            smallest = sorted((norms.sort().indices[:5] + 4).tolist())
            assert kept[layer, head].tolist() == [0, 1, 2, 3, *smallest, *range(14, 20)]


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
