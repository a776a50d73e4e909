"""Records without a model: ranks with slices of the heads see what the whole sees; attention mass by its formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.base import Needs
from policies.budget import Protection
from workers.api import Eviction, EvictionTrace
from workers.vllm_engine.events import EvictionCore, Rows, Source
from workers.vllm_engine.records import Records, RecordShape
from workers.vllm_engine.settings import EngineSettings, SettingsError, to_extra_args
from workers.vllm_engine.telemetry import RankFacts, measure, merge

NEEDS = Needs(recent_queries=24, attention="prefill", token_ids=True, slot_state=2)
SETTINGS = EngineSettings(keep_ceiling=24, interval=4, max_prompt_tokens=20, needs=NEEDS)
LAYERS, HEADS, GROUP, SIZE, PROMPT, TOKENS = (0, 1), (0, 1, 2, 3), 2, 8, 9, 60
GREEDY = f"{Path(__file__).with_name('greedy_for_needs.py')}:GreedyForNeeds"
TOTAL = torch.randn(3, len(LAYERS), TOKENS, len(HEADS) * GROUP, SIZE, generator=torch.Generator().manual_seed(4))
"""Queries, and in the first heads keys and values, of every token."""


class Rank:
    """One worker's forward of one request: a cache that follows the moves it is told."""

    def __init__(self, heads: Sequence[int]) -> None:
        shape = RecordShape(len(LAYERS), len(heads), len(heads) * GROUP, SIZE, torch.float32)
        self.records = Records(NEEDS, shape, 2, SETTINGS.capacity)
        self.core = EvictionCore(SETTINGS, LAYERS, heads, 2, self.records)
        own = slice(heads[0] * GROUP, (heads[-1] + 1) * GROUP)
        self.queries = TOTAL[0][:, :, own]
        self.keys, self.values = (t[:, :, list(heads)].transpose(1, 2) for t in TOTAL[1:])
        self.cache = torch.zeros(2, len(LAYERS), len(heads), SETTINGS.capacity, SIZE)

    def run(self, eviction: Eviction) -> tuple[EvictionTrace, RankFacts]:
        """Prefill, then decode every token; what was recorded stays."""
        self.core.requests.add("one", PROMPT, PROMPT, to_extra_args(eviction))
        self._forward(0, PROMPT)
        for n in range(PROMPT, TOKENS):
            self._forward(n, 1)
        facts = measure(self.core, "one")
        assert facts is not None
        return merge([facts], 0), facts

    def _keys(self, layer: int, slots: int) -> torch.Tensor:
        return self.cache[0, None, layer, :, :slots]

    def _rows(self, _: int, slots: int) -> Rows:
        return self.cache[0, ..., :slots, :], self.cache[1, ..., :slots, :]

    def _forward(self, n: int, count: int) -> None:
        source = Source(self._rows, lambda _, count: torch.arange(count) % 7)
        step = self.core.step(["one"], np.array([n]), np.array([count]), source)
        for _, moves in step.moves:
            for rows in self.cache:
                moves.apply(rows)
        cached = int(step.cached[0])
        new = torch.stack((self.keys[:, :, n : n + count], self.values[:, :, n : n + count]))
        self.cache[..., cached - count : cached, :] = new
        plan = step.recording
        assert plan is not None
        for layer in range(len(LAYERS)):
            query = self.queries[layer, n : n + count]
            self.records.keep_queries(plan, layer, query)
            if len(plan.rows):
                keys = partial(self._keys, layer)
                self.records.add_decode_mass(plan, layer, query, 0.5, keys)
            self.records.add_prompt_mass(plan, layer, query, self.keys[layer, :, n : n + count].transpose(0, 1), 0.5)


def arm(policy: str) -> Eviction:
    return Eviction(policy, {}, 24, 4, Protection.SINKS, 2, 5)


@pytest.mark.parametrize("policy", ["snapkv_rkv", "h2o", GREEDY])
def test_ranks_that_hold_slices_of_the_heads_merge_to_the_whole(policy: str) -> None:
    eviction = arm(policy) if policy != "snapkv_rkv" else Eviction(policy, {"window": 6}, 24, 4, Protection.SINKS, 2, 5)
    whole, _ = Rank(HEADS).run(eviction)
    parts = [Rank(HEADS[:2]).run(eviction)[1], Rank(HEADS[2:]).run(eviction)[1]]
    merged = merge(parts, 0)
    assert merged.prompt_kept_mean == pytest.approx(whole.prompt_kept_mean, rel=1e-12)
    assert replace(merged, prompt_kept_mean=whole.prompt_kept_mean) == whole
    assert whole.events == 8


def test_attention_mass_is_the_sum_over_what_each_query_saw() -> None:
    """A keep that no token exceeds: every query saw every earlier key."""
    rank = Rank(HEADS)
    core = rank.core
    core.requests.add("one", PROMPT, PROMPT, to_extra_args(arm(GREEDY)))
    rank._forward(0, PROMPT)
    for n in range(PROMPT, 27):
        rank._forward(n, 1)
    expected = torch.zeros(len(LAYERS), len(HEADS), 27)
    for n in range(27):
        keys = rank.keys[:, :, : n + 1].repeat_interleave(GROUP, 1)
        weights = (keys @ rank.queries[:, n, :, :, None] * 0.5).squeeze(-1).softmax(-1)
        expected[..., : n + 1] += weights.unflatten(1, (len(HEADS), GROUP)).sum(2)
    assert rank.records.mass is not None
    torch.testing.assert_close(rank.records.mass[:, 0, :, :27], expected)
    torch.testing.assert_close(rank.records.recent(0, 27, 6), rank.queries[:, 21:27].transpose(1, 2))
    assert rank.records.recent(0, 4, 6).shape[2] == 4


def test_a_policy_whose_needs_are_not_recorded_is_refused() -> None:
    plain = EvictionCore(EngineSettings(24, 4, 20), LAYERS, HEADS, 2)
    with pytest.raises(SettingsError, match="'snapkv' needs recent_queries 64, which this engine does not record"):
        plain.requests.add("one", PROMPT, PROMPT, to_extra_args(arm("snapkv")))


def test_a_record_is_given_back_and_starts_anew() -> None:
    rank = Rank(HEADS)
    first, _ = rank.run(arm("h2o"))
    assert len(rank.records._free) == 2
    again, _ = rank.run(arm("h2o"))
    assert again == first
