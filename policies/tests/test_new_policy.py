"""docs/new_policy.md: the page's own policy selects what the page says it does."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from policies import registry
from policies.base import Scorer
from policies.draws import Draw
from policies.select import select
from policies.view import CacheView

PAGE = Path(__file__).parents[2] / "docs" / "new_policy.md"


def test_the_pages_policy_keeps_the_smallest_norms(tmp_path: Path) -> None:
    file = tmp_path / "small_norm.py"
    file.write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    policy = registry.build(f"{file}:SmallNorm", {})
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
