"""Selectors that remember: G-KV, LazyEviction; and CAOTE. Each against its formula written a second time, by loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from policies.compaction import plan
from policies.draws import Draw
from policies.methods.caote import Caote
from policies.methods.g_kv import GKV
from policies.methods.lazy_eviction import LazyEviction
from policies.select import select
from policies.view import CacheView

L, H, G, D, R = 2, 2, 2, 8, 8


class Trace:
    """A request of random keys, values and queries; `view(t, table)` is what an engine would show of it."""

    def __init__(self, tokens: int = 80) -> None:
        make = torch.Generator().manual_seed(11)
        self.keys, self.values = (torch.randn(L, H, tokens, D, generator=make) for _ in range(2))
        self.queries = 3 * torch.randn(L, H * G, tokens, D, generator=make)

    def view(self, t: int, table: torch.Tensor, window: int, **fields: Any) -> CacheView:
        index = table[..., None].expand(*table.shape, D)
        facts: dict[str, Any] = {"prot": 4, "recent": R, "n_select": 20, "layers": (0, 1), "heads": (0, 1)}
        return CacheView(
            shape=(L, H, table.shape[2]), t=t, draw=Draw(0, 0, (0, 1), (0, 1)), positions=table,
            keys=self.keys.gather(2, index), values=self.values.gather(2, index),
            queries=self.queries[:, :, max(0, t - window) : t], **{**facts, **fields},
        )  # fmt: skip

    def attention(self, layer: int, head: int, query: int, slots: torch.Tensor) -> torch.Tensor:
        """Softmax of a query's token over the given positions up to its own, per head of the group: [G, len]."""
        logits = self.keys[layer, head, slots] @ self.queries[layer, head * G : head * G + G, query].T / math.sqrt(D)
        logits[slots > query] = float("-inf")
        return logits.T.softmax(-1)


def test_caote_is_the_error_of_leaving() -> None:
    """With one query and one head per group, the score is |output without the slot - output| exactly."""
    trace, table = Trace(), torch.arange(30).repeat(L, H, 1)
    view = trace.view(30, table, window=1)
    view = replace(view, queries=view.need("queries")[:, ::G])
    scores = Caote(window=1, kernel=1).score(view)
    for layer, head in ((0, 0), (1, 1)):
        logits = trace.keys[layer, head, : 30 - R] @ view.need("queries")[layer, head, 0] / math.sqrt(D)
        values = trace.values[layer, head, : 30 - R]
        full = logits.softmax(0) @ values
        for slot in range(30 - R):
            rest = torch.arange(30 - R) != slot
            changed = logits[rest].softmax(0) @ values[rest]
            assert scores[layer, head, slot] == pytest.approx(float((changed - full).norm()), rel=1e-3, abs=1e-5)


def test_caote_spoils_only_the_slot_that_is_not_finite() -> None:
    trace, table = Trace(), torch.arange(30).repeat(L, H, 1)
    view = trace.view(30, table, window=4)
    view.need("values")[1, 0, 9] = float("nan")
    scores = Caote(window=4, kernel=1).score(view)
    assert scores[1, 0].isnan().nonzero().flatten().tolist() == [9]
    assert scores[0].isfinite().all()


def run(policy: GKV | LazyEviction, trace: Trace, events: int) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """(t, positions, state) as scored at each event; hole filling, state moved with the slots as engines do."""
    keep, t = 32, 40
    table, state = torch.arange(t).repeat(L, H, 1), torch.zeros(L, H, t, policy.needs.slot_state)
    seen = []
    for _ in range(events):
        view = trace.view(t, table, policy.window, slot_state=state)
        view = replace(view, slot_state=policy.observe(view))
        seen.append((t, table.clone(), view.need("slot_state").clone()))
        kept = select(policy, view)
        state = view.need("slot_state").clone()
        moves = plan(kept, table.shape[2], order=False)
        moves.apply(table)
        moves.apply(state)
        new = torch.arange(t, t + R).repeat(L, H, 1)
        table = torch.cat((table[..., :keep], new), dim=2)
        state = torch.cat((state[:, :, :keep], torch.zeros(L, H, R, policy.needs.slot_state)), dim=2)
        t += R
    return seen


def test_g_kv_remembers_the_best_decayed_attention() -> None:
    policy, trace = GKV(window=4), Trace()
    memory: dict[tuple[int, int, int], float] = {}
    for t, table, state in run(policy, trace, events=4):
        for layer in range(L):
            for head in range(H):
                slots = table[layer, head]
                mean = sum(trace.attention(layer, head, q, slots).amax(0) for q in range(t - 4, t)) / 4
                assert isinstance(mean, torch.Tensor)
                local = mean[: len(slots) - R] / mean[: len(slots) - R].max()
                for slot, value in enumerate(local.tolist()):
                    key = (layer, head, int(slots[slot]))
                    memory[key] = max(0.8 * memory.get(key, 0.0), value)
                    assert state[layer, head, slot, 0] == pytest.approx(memory[key], abs=1e-5)
                assert not state[layer, head, len(slots) - R :].any()


def test_lazy_eviction_counts_recurrences_step_by_step() -> None:
    """Every decode step from position 32 on, one at a time as the authors do; older queries are outside the window."""
    policy, trace = LazyEviction(window=R, threshold=0.05), Trace()
    for layer, head in ((0, 1), (1, 0)):
        last: dict[int, float] = {}
        longest: dict[int, float] = {}
        for t, table, state in run(policy, trace, events=4):
            slots = table[layer, head]
            for query in range(t - R, t):
                hit = (trace.attention(layer, head, query, slots) >= 0.05).any(0)
                for slot, position in enumerate(slots.tolist()):
                    last.setdefault(position, position - 1)
                    longest.setdefault(position, 0)
                    if hit[slot] and position <= query:
                        longest[position] = max(longest[position], query - last[position])
                        last[position] = query
            assert max(longest.values()) > 1
            for slot, position in enumerate(slots.tolist()):
                assert state[layer, head, slot].tolist() == [last[position] + 2, longest[position]]


def test_recurrence_score_is_the_authors_formula() -> None:
    state = torch.tensor([[[[31 + 2, 6.0], [39 + 2, 1.0], [10 + 2, 0.0]]]])
    table = torch.arange(3).view(1, 1, 3)
    view = replace(Trace().view(40, table.repeat(L, H, 1), 1), slot_state=state, shape=(1, 1, 3))
    wanted = [2 / (1 + math.exp(1 + 8 / 6)) + 2 / (1 + math.exp(5)), 2 / (1 + math.e) + 1, 0.0]
    torch.testing.assert_close(LazyEviction().score(view)[0, 0], torch.tensor(wanted), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("policy", "params"), [(GKV, {"decay": 1.5}), (GKV, {"window": 0}), (LazyEviction, {"threshold": -1.0})]
)
def test_parameters_out_of_range(policy: type, params: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="it must be"):
        policy(**params)
