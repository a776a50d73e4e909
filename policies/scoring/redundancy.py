"""R-KV's redundancy: how alike a key is to the other keys of its head (policies.md section 6), fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from policies.scoring.precision import at_least_fp32
from policies.scoring.window import by_layer, finite, max_attention, pooled, snapkv

if TYPE_CHECKING:
    from policies.methods.rkv import RKV
    from policies.methods.rkv_official import RKVOfficial
    from policies.view import CacheView

EPSILON = 1e-8
_ROWS = 256


def rkv(policy: RKV, view: CacheView) -> torch.Tensor:
    """snapkv's score against the softmax of mean cosines among candidates: fp32 [L, H, S - recent]."""
    candidates = view.need("keys")[:, :, : view.shape[2] - view.recent]
    redundancy = torch.stack([mean_cosine(directions(keys)).softmax(-1) for keys in candidates])
    return _mixed(snapkv(policy, view), redundancy, policy.mix_lambda)


def rkv_official(policy: RKVOfficial, view: CacheView) -> torch.Tensor:
    """snapkv_rkv's score against the softmax over all slots, where each forgave one: fp32 [L, H, S - recent]."""
    end = view.shape[2] - view.recent
    units = map(directions, view.need("keys"))
    redundancy = torch.stack(
        [(mean_cosine(unit) - forgiven(unit, policy.threshold, policy.retain)).softmax(-1)[:, :end] for unit in units]
    )
    return _mixed(pooled(by_layer(view, max_attention), policy), redundancy, policy.mix_lambda)


def directions(keys: torch.Tensor) -> torch.Tensor:
    """Keys [H, N, D] of unit length, fp32; a key that is not finite becomes 0 and so is like no other."""
    keys = at_least_fp32(keys)
    keys = keys.masked_fill(~finite(keys)[..., None], 0.0)
    return keys / (keys.norm(dim=-1, keepdim=True) + EPSILON)


def mean_cosine(unit: torch.Tensor) -> torch.Tensor:
    """Mean over all N keys of the cosine with each, itself counted as 0: fp32 [H, N].

    O(N·D): the sum of a key's products is its product with the sum.
    """
    total = unit.sum(1, keepdim=True)
    return ((unit * total).sum(-1) - unit.square().sum(-1)) / unit.shape[1]


def forgiven(unit: torch.Tensor, threshold: float, retain: str) -> torch.Tensor:
    """What each key's mean cosine loses because others forgive it, fp32 [H, N].

    Row i forgives the last key whose cosine with it exceeds the threshold; slot 0 where there is none, and always when
    retain is "first". N² work, a stripe of rows at a time.
    """
    heads, slots, _ = unit.shape
    index = torch.arange(slots, device=unit.device)
    lost = unit.new_zeros((heads, slots))
    for first in range(0, slots, _ROWS):
        rows = index[first : first + _ROWS]
        cosine = unit[:, first : first + _ROWS] @ unit.transpose(1, 2)
        cosine[:, rows - first, rows] = 0.0
        column = forgiven_slot(cosine, threshold, retain)
        lost.scatter_add_(1, column, cosine.gather(-1, column[..., None])[..., 0])
    return lost / slots


def forgiven_slot(cosine: torch.Tensor, threshold: float, retain: str) -> torch.Tensor:
    """The slot that each row of cosines [H, R, N] forgives, int64 [H, R]."""
    if retain == "first":
        return torch.zeros(cosine.shape[:2], dtype=torch.int64, device=cosine.device)
    # int32: a table of int64 is what this would spend its time on
    index = torch.arange(cosine.shape[2], dtype=torch.int32, device=cosine.device)
    return torch.where(cosine > threshold, index, 0).amax(-1).long()


def _mixed(importance: torch.Tensor, redundancy: torch.Tensor, weight: float) -> torch.Tensor:
    return weight * importance - (1.0 - weight) * redundancy
