"""From scores to kept slots: the one selection that engines, oracles and verify share (policies.md section 1.2)."""

from __future__ import annotations

import torch

from policies.base import Scorer
from policies.view import CacheView


def select(policy: Scorer, view: CacheView) -> torch.Tensor:
    """Kept slots, int64 [L, H, min(S, K')] ascending.

    The first `prot` and last `recent` slots stay; of those between, the `n_select` with the highest score, lower slot
    first among equals, NaN last. Nothing is scored when all candidates stay. Scores may have one head for all.
    Raises ValueError when the policy's scores are not [L, H or 1, S].
    """
    layers, heads, slots = view.shape
    end = slots - view.recent
    if view.n_select >= end - view.prot:
        device = None if view.positions is None else view.positions.device
        return torch.arange(slots, device=device).expand(layers, heads, slots)
    scores = policy.score(view)
    if scores.shape not in ((layers, heads, slots), (layers, 1, slots)):
        raise ValueError(
            f"policy '{policy.name or type(policy).__name__}' gave scores of shape {list(scores.shape)}; "
            f"it must be [layers {layers}, heads {heads} or 1, slots {slots}]."
        )
    chosen = _best(scores[..., view.prot : end], view.n_select)
    kept = torch.empty(
        (layers, heads, view.prot + view.n_select + view.recent), dtype=torch.int64, device=scores.device
    )
    kept[..., : view.prot] = torch.arange(view.prot, device=scores.device)
    kept[..., view.prot : view.prot + view.n_select] = chosen + view.prot
    kept[..., view.prot + view.n_select :] = torch.arange(end, slots, device=scores.device)
    return kept


def rank(scores: torch.Tensor) -> torch.Tensor:
    """Indices along the last dimension from best to worst: higher score, then lower index; NaN last. Any real dtype."""
    return torch.sort(_reversed(scores), dim=-1, stable=True).indices


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` of rank(scores), ascending by index: int64 [L, H, count]."""
    if count == 0:
        return scores.new_empty((*scores.shape[:-1], 0), dtype=torch.int64)
    worst = _reversed(scores)
    bound = worst.kthvalue(count, dim=-1, keepdim=True).values
    # Several times faster than sorting: at least `count` a head, and exactly that many but for NaN and ties past it.
    best = (worst > bound).logical_not_().nonzero()[:, -1]
    if best.numel() == count * scores[..., 0].numel():
        return best.view(*scores.shape[:-1], count)
    return rank(scores)[..., :count].sort(dim=-1).values


def _reversed(scores: torch.Tensor) -> torch.Tensor:
    """Scores in the opposite order, exactly: an ascending stable sort of these has lower slots first and NaN last."""
    return -scores if scores.is_floating_point() else ~scores
