"""The nulls: ages survive as the curve says, overlap is what was asked for, permuted scores keep ages and only ages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from policies import registry
from policies.base import Needs, Scorer
from policies.draws import Draw
from policies.methods.permuted_scores import source_of
from policies.registry import PolicyError
from policies.scoring.nulls import _age_bin
from policies.select import select
from policies.view import CacheView

L, H, PROMPT, KEEP, R = 2, 3, 8, 200, 16


def run(policy: Scorer, events: int, seed: int = 1) -> torch.Tensor:
    """Positions held after the last of several events, [L, H, KEEP]."""
    t = KEEP + R
    positions = torch.arange(t).expand(L, H, t)
    for event in range(events):
        view = CacheView(
            shape=(L, H, positions.shape[-1]),
            prot=PROMPT,
            recent=R,
            n_select=KEEP - PROMPT - R,
            t=t,
            layers=tuple(range(L)),
            heads=tuple(range(H)),
            draw=Draw(seed, event, tuple(range(L)), tuple(range(H))),
            positions=positions,
            keys=torch.randn(L, H, positions.shape[-1], 4, generator=torch.Generator().manual_seed(event)),
        )
        kept = positions.gather(-1, select(policy, view))
        positions = torch.cat([kept, torch.arange(t, t + R).expand(L, H, R)], dim=-1)
        t += R
    return kept


def test_a_flat_hazard_is_uniform_random() -> None:
    # S halves with every doubling of age far out: a curve whose bins are known.
    survival = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.95, 0.7, 0.4, 0.2, 0.1, 0.05)
    policy = registry.build("matched_age", {"survival": survival, "r": R})
    assert isinstance(policy, Scorer)
    events = 40
    t = KEEP + R * events
    held = torch.zeros(12)
    tokens = torch.bincount(_age_bin(t - 1 - torch.arange(PROMPT, t)), minlength=12)
    for seed in range(4):
        kept = run(policy, events, seed)
        held += torch.bincount(_age_bin(t - 1 - kept[kept >= PROMPT]), minlength=12) / (L * H * 4)
    shares = held / tokens.clamp_min(1)
    # The budget fixes the total; the shape follows the curve.
    assert shares[7:11].tolist() == sorted(shares[7:11].tolist(), reverse=True)
    assert (shares[8] / shares[9]).item() == pytest.approx(0.4 / 0.2, rel=0.35)


def test_overlap_shares_the_fate_of_tokens_among_heads_and_layers() -> None:
    survival = tuple(0.9**b for b in range(12))
    alone, same = (
        run(registry.build("matched_age", {"survival": survival, "overlap": x, "r": R}), 20)  # type: ignore[arg-type]
        for x in (0.0, 1.0)
    )
    assert torch.equal(same.sort(-1).values, same[:1, :1].expand_as(same).sort(-1).values)
    assert alone.unique().numel() > 1.5 * same.unique().numel()


def test_permuted_scores_keep_each_ages_count_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom policies.base import Scorer\n\n\n@dataclass(frozen=True)\n"
        "class Norm(Scorer):\n    order: float = 2.0\n\n    def score(self, view):\n"
        "        return -view.need('keys').norm(p=self.order, dim=-1)\n"
    )
    name = f"{file}:Norm"
    mine = registry.build(name, {})
    null = registry.build("permuted_scores", {"policy": name, "source": source_of(name)})
    assert isinstance(mine, Scorer)
    assert isinstance(null, Scorer)
    assert null.needs == Needs(positions=True)
    chosen, shuffled = run(mine, 1), run(null, 1)
    bins = [_age_bin(KEEP + R - 1 - kept) for kept in (chosen, shuffled)]
    for layer in range(L):
        for head in range(H):
            counts = [torch.bincount(found[layer, head], minlength=10) for found in bins]
            assert torch.equal(*counts)
    assert not torch.equal(chosen, shuffled)
    assert not torch.equal(shuffled[0, 0], shuffled[0, 1])
    with pytest.raises(PolicyError, match="but the content of"):
        registry.build("permuted_scores", {"policy": name, "source": "0"})
    with pytest.raises(PolicyError, match="no scores that could be permuted"):
        registry.build("permuted_scores", {"policy": "full"})


def test_parameters_survive_their_way_to_an_engine() -> None:
    policy = registry.build("matched_age", {"survival": [1, 0.5], "overlap": 1})
    again = registry.build("matched_age", json.loads(json.dumps(policy.params())))
    assert (again, policy.params()["survival"]) == (policy, (1.0, 0.5))
    with pytest.raises(PolicyError, match=r"survival is 2\.0"):
        registry.build("matched_age", {"survival": [2.0]})
