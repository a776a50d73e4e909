"""Scores by the change of the attention output (CAOTE, arXiv 2504.14051), fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from policies.scoring.window import snapkv

if TYPE_CHECKING:
    from policies.base import Windowed
    from policies.view import CacheView

# A slot with all the attention would have no finite error of leaving.
_MOST = 1 - 1e-6


def caote(policy: Windowed, view: CacheView) -> torch.Tensor:
    """a / (1 - a) · |v - Σ a v| over the candidates: [L, H, S - recent]; NaN where key or value is not finite."""
    share = snapkv(policy, view).clamp(max=_MOST)
    values = view.need("values")[:, :, : share.shape[2]]
    scores = torch.empty_like(share)
    for layer in range(share.shape[0]):
        scores[layer] = share[layer] / (1 - share[layer]) * _distance(share[layer], values[layer].float())
    return scores


def _distance(share: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """|v - Σ a v| of values [H, N, D] under shares [H, N]: [H, N]. What is not finite has no part in the sum."""
    usable = share.isfinite() & values.isfinite().all(-1)
    output = torch.where(usable, share, 0)[:, None] @ torch.where(usable[..., None], values, 0)
    return (values - output).norm(dim=-1)
