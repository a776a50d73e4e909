"""VaSE's scores: width of values, then a draw by attention (policies.md section 7), fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from policies.scoring.precision import at_least_fp32
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
    width = value_range(view.need("values")[:, :, : view.shape[2] - view.recent])
    return sampled(policy, view, snapkv(policy, view), width)


def sampled(policy: VaSE, view: CacheView, attention: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """vase's scores from the candidates' attention and width, [L, H, S - recent] each."""
    count = policy.widest(view.keep, view.prot, view.n_select)
    widest = best(comparable(with_sinks(policy, width))[..., view.prot :], count) + view.prot
    scores = attention / exponential(view)[..., : width.shape[2]].to(width.device)
    return scores.scatter_(-1, widest, float("inf"))


def comparable(width: torch.Tensor) -> torch.Tensor:
    """Widths as they are ranked: in bfloat16, as the authors' code has them, so that equal is equal.

    A value of the first layer depends on its token alone. Equal tokens then have one width up to the last bit of the
    matrix product that made it, and that bit must not decide which of them stays: the lower slot does.
    """
    return width.to(torch.bfloat16).to(width.dtype)


def with_sinks(policy: VaSE, width: torch.Tensor) -> torch.Tensor:
    """Widths [L, H, N] where the first n_sink slots count as widest."""
    return torch.cat((torch.full_like(width[..., : policy.n_sink], float("inf")), width[..., policy.n_sink :]), dim=-1)


def value_range(values: torch.Tensor) -> torch.Tensor:
    """Maximum minus minimum over the dimensions of [L, H, N, D], in fp32: [L, H, N]."""
    return at_least_fp32(values.amax(-1)) - at_least_fp32(values.amin(-1))


def exponential(view: CacheView) -> torch.Tensor:
    """Exponential noise with mean 1 by the event's draw, fp32 [L, H, S]: positive, inf where the draw is 0."""
    return -view.draw.uniform(view.shape[2]).log()
