"""A policy file as a user writes one, that asks for everything an engine can give and scores by all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from policies.base import Needs, Scorer
from policies.view import CacheView


@dataclass(frozen=True)
class GreedyForNeeds(Scorer):
    """Scores by queries, values, prefill attention, token ids and a state that remembers earlier events."""

    name: ClassVar[str] = "greedy_for_needs"
    needs: ClassVar[Needs] = Needs(
        recent_queries=24, attention="prefill", positions=True, order=True, token_ids=True, slot_state=2
    )

    def observe(self, view: CacheView) -> torch.Tensor:
        """Decayed attention mass, and the number of events survived."""
        before, mass = view.need("slot_state"), view.need("attention")
        return torch.stack((before[..., 0] / 2 + mass, before[..., 1] + 1), dim=-1)

    def score(self, view: CacheView) -> torch.Tensor:
        """fp32 [L, H, S]."""
        keys, values, queries = (view.need(name).float() for name in ("keys", "values", "queries"))
        grouped = queries.unflatten(1, (keys.shape[1], -1))
        logits = (grouped @ keys[:, :, None].transpose(3, 4)).mean((2, 3))
        state, ids = view.need("slot_state"), view.need("token_ids")
        return logits + values.std(-1) + state[..., 0] + state[..., 1] / 8 + (ids % 5) / 4


@dataclass(frozen=True)
class DecodeMass(Scorer):
    """Scores by the attention mass of decode steps alone; slots move by hole filling."""

    name: ClassVar[str] = "decode_mass"
    needs: ClassVar[Needs] = Needs(attention="step")

    def score(self, view: CacheView) -> torch.Tensor:
        """fp32 [L, H, S]."""
        return view.need("attention")
