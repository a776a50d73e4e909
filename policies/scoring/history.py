"""Scores that remember earlier events in per-slot state (Scorer.observe), fp32, one layer at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from policies.scoring.window import logits

if TYPE_CHECKING:
    from policies.base import Policy
    from policies.methods.g_kv import GKV
    from policies.methods.lazy_eviction import LazyEviction
    from policies.view import CacheView

# The authors' guard against an interval of 0.
_EPSILON = 1e-5


def decayed_attention(policy: GKV, view: CacheView) -> torch.Tensor:
    """State of G-KV: max(decay · state, attention now); 0 in the recent slots, which are scored when they are not."""
    state = view.need("slot_state").clone()
    end = view.shape[2] - view.recent
    state[:, :, end:] = 0
    for layer in range(view.shape[0]):
        attention = visible_attention(view, layer).amax(1).mean(1)[:, :end]
        largest = attention.amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        old = state[layer, :, :end, 0]
        state[layer, :, :end, 0] = torch.maximum(policy.decay * old, attention / largest)
    return state


def remembered(policy: Policy, view: CacheView) -> torch.Tensor:
    """The state itself: [L, H, S]."""
    del policy
    return view.need("slot_state")[..., 0]


def tracked_recurrence(policy: LazyEviction, view: CacheView) -> torch.Tensor:
    """State of LazyEviction: (last + 2, MRI), where last is the position of the last query that attended enough.

    A slot of state 0 is new: it starts with the query before its own, so that last + 2 is never 0.
    """
    positions, state = view.need("positions"), view.need("slot_state").clone()
    for layer in range(view.shape[0]):
        last, longest = state[layer, ..., 0] - 2, state[layer, ..., 1]
        last = torch.where(last < -1, positions[layer].float() - 1, last)
        hits = (visible_attention(view, layer) >= policy.threshold).any(1)
        times = torch.arange(view.t - hits.shape[1], view.t, device=hits.device, dtype=torch.float32)[:, None]
        # Row j: the last hit before query j; the row after the newest query is the new `last`.
        reached = torch.where(hits, times, -1.0)
        before = torch.cat((last[:, None], torch.maximum(reached.cummax(1).values, last[:, None])), dim=1)
        intervals = torch.where(hits, times - before[:, :-1], 0)
        state[layer, ..., 0] = before[:, -1] + 2
        state[layer, ..., 1] = torch.maximum(longest, intervals.amax(1))
    return state


def recurrence(policy: Policy, view: CacheView) -> torch.Tensor:
    """Importance by recurrence (LazyEviction), in [0, 2]: [L, H, S]."""
    del policy
    last, longest = view.need("slot_state").unbind(-1)
    waited = (view.t - 1) - (last - 2)
    regular = 2 * torch.sigmoid(1 - longest)
    return 2 * torch.sigmoid(-1 - waited / (longest + _EPSILON)) + torch.where(longest > 0, regular, 0)


def visible_attention(view: CacheView, layer: int) -> torch.Tensor:
    """Causal softmax of the newest queries over all slots: [H, G, w, S], 0 for slots that a query does not see.

    A key that is not finite is seen by nobody.
    """
    queries, keys, positions = view.need("queries")[layer], view.need("keys")[layer], view.need("positions")[layer]
    own = torch.arange(view.t - queries.shape[1], view.t, device=keys.device)
    unseen = positions[:, None, :] > own[:, None]
    unseen |= ~keys.isfinite().all(-1)[:, None]
    return logits(queries, keys).masked_fill(unseen[:, None], float("-inf")).softmax(-1).nan_to_num(0.0)
