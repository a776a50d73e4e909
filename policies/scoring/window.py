"""Scores by the attention of the newest queries (policies.md section 5): fp32, one layer at a time.

Candidates are the slots outside the recent ones, protected slots included: protection overrides afterwards. A key that
is not finite takes part in no softmax and scores NaN; a query that is not finite has no say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from policies.scoring.precision import at_least_fp32
from policies.select import rank

if TYPE_CHECKING:
    from policies.base import Windowed
    from policies.methods.h2o import H2O
    from policies.methods.snapkv_rkv import SnapKVOfRKV
    from policies.view import CacheView

Attention = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def accumulated(policy: H2O, view: CacheView) -> torch.Tensor:
    """Attention mass since the slot was written: fp32 [L, H, S]."""
    del policy
    return view.need("attention")


def snapkv(policy: Windowed, view: CacheView) -> torch.Tensor:
    """Mean over queries, pooled, mean over the group: fp32 [L, H, S - recent]."""
    return by_layer(view, lambda queries, keys: pooled(mean_attention(queries, keys), policy).mean(1))


def snapkv_rkv(policy: SnapKVOfRKV, view: CacheView) -> torch.Tensor:
    """Maximum over the group before the softmax, mean over queries, pooled: [L, H, S - recent].

    fp32, or int64 ranks where ties go by the score before pooling.
    """
    raw = by_layer(view, max_attention)
    scores = pooled(raw, policy)
    return scores if policy.ties == "slot" else ranked_twice(scores, raw)


def by_layer(view: CacheView, attention: Attention) -> torch.Tensor:
    """attention(queries [H_q, w, D], candidate keys [H, N, D]) of every layer, stacked: fp32 [L, H, N]."""
    queries, keys = view.need("queries"), view.need("keys")
    candidates = keys[:, :, : view.shape[2] - view.recent]
    return torch.stack([attention(*pair) for pair in zip(queries, candidates, strict=True)])


def mean_attention(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Softmax over slots, mean over queries, per query head: fp32 [H, G, N]."""
    return _mean_softmax(logits(queries, keys), keys[:, None])


def max_attention(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Softmax over slots of the group's largest logit, mean over queries: fp32 [H, N]."""
    return _mean_softmax(logits(queries, keys).amax(1), keys)


def logits(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """q·k / sqrt(D) of queries [H_q, w, D] and keys [H, N, D], either of any float dtype: fp32 [H, G, w, N].

    Raises ValueError when the KV heads do not divide the query heads, or when there are no queries.
    """
    heads, _, dim = keys.shape
    if queries.shape[0] % heads or queries.shape[1] == 0:
        raise ValueError(
            f"{queries.shape[0]} query heads over {heads} KV heads with {queries.shape[1]} queries each; every KV head "
            "must have equally many query heads, and engines record queries from the first token on."
        )
    # queries are fewer than logits
    scaled = (at_least_fp32(queries) / math.sqrt(dim)).reshape(heads, -1, dim)
    return (scaled @ at_least_fp32(keys).transpose(1, 2)).unflatten(1, (-1, queries.shape[1]))


def pooled(scores: torch.Tensor, policy: Windowed) -> torch.Tensor:
    """Mean (absent neighbours count as 0) or maximum over the policy's `kernel` neighbouring slots of [.., .., N].

    A NaN stays where it is and is absent for its neighbours.
    """
    mean = policy.pool == "avg"
    pool = functional.avg_pool1d if mean else functional.max_pool1d
    unusable = scores.isnan()
    found = pool(
        scores.masked_fill(unusable, 0.0 if mean else float("-inf")),
        policy.kernel,
        stride=1,
        padding=policy.kernel // 2,
    )
    return found.masked_fill_(unusable, float("nan"))


def finite(rows: torch.Tensor) -> torch.Tensor:
    """True where a row [..., D] has neither NaN nor inf: bool [...]."""
    # a maximum is NaN where anything is, and several times faster than asking every element
    return rows.abs().amax(-1).isfinite()


def ranked_twice(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Integers in the order of `first`, equal ones in the order of `second`, then lower slot: int64 like both."""
    order = rank(second)
    order = order.gather(-1, rank(first.gather(-1, order)))
    places = torch.arange(first.shape[-1], 0, -1, device=first.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def _mean_softmax(z: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Mean over w of the softmax over N of z [..., w, N]; keys [..., N, D] tell which slots count: fp32 [..., N]."""
    unusable = ~finite(keys)
    if unusable.any():
        z = z.masked_fill(unusable.unsqueeze(-2), float("-inf"))
    weights = z.softmax(-1)
    mean = weights.mean(-2)
    if not mean.isfinite().all():
        mean = weights.nan_to_num(0.0).mean(-2)
    return mean.masked_fill(unusable, float("nan")) if unusable.any() else mean
