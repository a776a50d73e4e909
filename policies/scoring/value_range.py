"""VaSE's scores: width of values, then a draw by attention (policies.md section 7), fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from policies.scoring.window import snapkv
from policies.select import best

if TYPE_CHECKING:
    from policies.methods.vase import VaSE
    from policies.view import CacheView


def vase(policy: VaSE, view: CacheView) -> torch.Tensor:
    """inf for candidates that stay for their width, attention over exponential noise for others: [L, H, S - recent].

    The largest of a / E, E exponential, are a draw without replacement with probabilities as a (Efraimidis and
    Spirakis, 2006).
    """
    end = view.shape[2] - view.recent
    width = value_range(view.need("values")[:, :, :end])
    width[..., : policy.n_sink] = float("inf")
    scores = snapkv(policy, view) / exponential(view)[..., :end].to(width.device)
    widest = best(width[..., view.prot :], policy.widest(view.keep, view.prot, view.n_select)) + view.prot
    return scores.scatter_(-1, widest, float("inf"))


def value_range(values: torch.Tensor) -> torch.Tensor:
    """Maximum minus minimum over the dimensions of [L, H, N, D], in fp32: [L, H, N]."""
    return values.amax(-1).float() - values.amin(-1).float()


def exponential(view: CacheView) -> torch.Tensor:
    """Exponential noise with mean 1 by the event's draw, fp32 [L, H, S]: positive, inf where the draw is 0."""
    return -view.draw.uniform(view.shape[2]).log()
