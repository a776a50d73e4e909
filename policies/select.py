"""From scores to kept slots: the one selection that engines, oracles and verify share (policies.md section 1.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from policies.base import Scorer
from policies.view import CacheView


@dataclass(slots=True)
class Tally:
    """What selections met, summed over events; a tensor, so that counting never waits for a device.

    nan_scores  candidates whose score was NaN: ranked last (policies.md section 12)
    """

    nan_scores: torch.Tensor | int = 0

    def add(self, candidates: torch.Tensor) -> None:
        """Count the candidates [L, H, N] of one event."""
        if candidates.is_floating_point():
            self.nan_scores = self.nan_scores + candidates.isnan().sum()


def select(policy: Scorer, view: CacheView, tally: Tally | None = None) -> torch.Tensor:
    """Kept slots, int64 [L, H, min(S, K')], ascending unless the policy's slot_order is "score".

    The first `prot` and last `recent` slots stay; of those between, the `n_select` with the highest score, lower slot
    first among equals, NaN last; banned slots go before all others and pinned ones stay before all others. Nothing is
    scored when all candidates stay. Scores may have one head for all, and may lack the recent slots.
    Raises ValueError when the parts do not fit or the policy's scores have another shape.
    """
    layers, heads, slots = view.shape
    end = slots - view.recent
    if min(view.prot, view.recent, view.n_select) < 0:
        raise ValueError(
            f"{view.prot} protected, {view.recent} recent and {view.n_select} selected slots: none may be negative; "
            f"keep is smaller than what is protected and recent."
        )
    if view.n_select >= end - view.prot:
        device = None if view.positions is None else view.positions.device
        return torch.arange(slots, device=device).expand(layers, heads, slots)
    scores = scores_of(policy, view)
    candidates = scores[..., view.prot : end]
    if tally is not None:
        tally.add(candidates)
    chosen = _chosen(candidates, view, policy.slot_order)
    kept = torch.empty((layers, heads, view.keep), dtype=torch.int64, device=scores.device)
    kept[..., : view.prot] = torch.arange(view.prot, device=scores.device)
    kept[..., view.prot : view.prot + view.n_select] = chosen + view.prot
    kept[..., view.prot + view.n_select :] = torch.arange(end, slots, device=scores.device)
    return kept


def scores_of(policy: Scorer, view: CacheView) -> torch.Tensor:
    """The policy's scores of a view. Raises ValueError when they have another shape than Scorer.score says."""
    (layers, heads, slots), end = view.shape, view.shape[2] - view.recent
    scores = policy.score(view)
    if scores.shape[:-1] not in ((layers, heads), (layers, 1)) or scores.shape[-1] not in (slots, end):
        raise ValueError(
            f"policy '{policy.name or type(policy).__name__}' gave scores of shape {list(scores.shape)}; "
            f"it must be [layers {layers}, heads {heads} or 1, slots {slots} or, without the recent ones, {end}]."
        )
    return scores


def rank(scores: torch.Tensor) -> torch.Tensor:
    """Indices along the last dimension from best to worst: higher score, then lower index; NaN last. Any real dtype."""
    return torch.sort(_reversed(scores), dim=-1, stable=True).indices


def best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` of rank(scores), ascending by index: int64 [L, H, count]."""
    if count == 0:
        return scores.new_empty((*scores.shape[:-1], 0), dtype=torch.int64)
    worst = _reversed(scores)
    bound = worst.kthvalue(count, dim=-1, keepdim=True).values
    # Several times faster than sorting: at least `count` a head, and exactly that many but for NaN and ties past it.
    found = (worst > bound).logical_not_().nonzero()[:, -1]
    if found.numel() == count * scores[..., 0].numel():
        return found.view(*scores.shape[:-1], count)
    return rank(scores)[..., :count].sort(dim=-1).values


def _chosen(candidates: torch.Tensor, view: CacheView, slot_order: str) -> torch.Tensor:
    """Indices of the candidates that stay, int64 [L, H or 1, n_select], in the order asked for."""
    forced = view.pinned is not None or view.banned is not None
    if not forced and slot_order == "position":
        return best(candidates, view.n_select)
    order = rank(candidates)
    if forced:
        order = order.expand(*view.shape[:2], -1)
        places = _places(view).gather(-1, order)
        order = order.gather(-1, places.sort(dim=-1, stable=True).indices)
    order = order[..., : view.n_select]
    return order if slot_order == "score" else order.sort(dim=-1).values


def _places(view: CacheView) -> torch.Tensor:
    """0 for pinned candidates, 1 for free ones, 2 for banned ones: [L, H, N]."""
    inner = slice(view.prot, view.shape[2] - view.recent)
    given = view.pinned if view.pinned is not None else view.banned
    assert given is not None
    places = torch.ones_like(given[..., inner], dtype=torch.int8)
    if view.pinned is not None:
        places.masked_fill_(view.pinned[..., inner], 0)
    if view.banned is not None:
        places.masked_fill_(view.banned[..., inner], 2)
    return places


def _reversed(scores: torch.Tensor) -> torch.Tensor:
    """Scores in the opposite order, exactly: an ascending stable sort of these has lower slots first and NaN last."""
    return -scores if scores.is_floating_point() else ~scores
