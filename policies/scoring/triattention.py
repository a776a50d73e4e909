"""TriAttention's scores (policies.md section 8), on cached post-RoPE keys and without position tables.

Turning the mean query of a band forward by t + δ gives a virtual query in the keys' own rotation, so a score is one dot
product per key plus a weighted sum of its band norms. Angles reach 1e5 rad: they are taken in fp64, scores in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from policies.scoring.precision import at_least_fp32

if TYPE_CHECKING:
    from policies.calibration import Calibration
    from policies.methods.triattention import TriAttention
    from policies.view import CacheView

STD_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Weights:
    """What keys are multiplied with, for one event.

    queries    virtual queries [Δ, L, H_q, D], float like norms; Δ is 1 for the mean over distances, 0 without trig
    norms      factor of each band's |k|, [L, H_q, D/2]: fp64 as made, fp32 as used on a cache below fp64
    real, imag dimensions of a band's two parts, int64 [D/2]
    """

    queries: torch.Tensor
    norms: torch.Tensor
    real: torch.Tensor
    imag: torch.Tensor

    def of_heads(self, rows: Sequence[int], keys: torch.Tensor) -> Weights:
        """Weights of some query heads, where the keys are and in the precision of their scores."""
        dtype = at_least_fp32(keys.new_empty(0)).dtype
        queries, norms = (part.to(keys.device, dtype) for part in (self.queries[:, :, rows], self.norms[:, rows]))
        return Weights(queries, norms, self.real.to(keys.device), self.imag.to(keys.device))

    def of_layer(self, layer: int) -> Weights:
        """One layer's weights, L = 1."""
        one = slice(layer, layer + 1)
        return Weights(self.queries[:, one], self.norms[one], self.real, self.imag)


def score(policy: TriAttention, view: CacheView) -> torch.Tensor:
    """fp32 [L, H, S]: z-scores over the candidates, the group's maximum, and the mean over layers unless per_layer.

    Raises ValueError when the view has no calibration, another than the policy names, or one of another shape.
    """
    keys, statistics = view.need("keys"), _statistics(policy, view)
    group = statistics.abs_mean.shape[1] // statistics.meta.kv_heads
    rows = [group * head + member for head in view.heads for member in range(group)]
    weights = event_weights(policy, statistics, view.layers, view.t).of_heads(rows, keys)
    end = view.shape[2] - view.recent
    total = weights.norms.new_zeros(view.shape if policy.per_layer else (1, *view.shape[1:]))
    for layer in range(view.shape[0]):
        heads = head_scores(keys[layer], weights.of_layer(layer))
        if policy.normalize:
            heads = normalized(heads, view.prot, end)
        best = heads.unflatten(0, (view.shape[1], group)).amax(dim=1)
        if policy.per_layer:
            total[layer] = best
        else:
            total[0] += best / view.shape[0]
    return total.expand(view.shape)


def event_weights(policy: TriAttention, statistics: Calibration, layers: Sequence[int], t: int) -> Weights:
    """Weights on the CPU for the given layers and all query heads; t = logical position of the next token."""
    index = list(layers)
    center = statistics.center_real[index] + 1j * statistics.center_imag[index].astype(np.float64)
    scale = statistics.band_scale()
    mean_abs = statistics.abs_mean[index]
    norms = scale * (mean_abs if policy.disable_mlr else mean_abs - np.abs(center))
    real, imag = statistics.bands()
    turns = np.zeros((0, len(scale)), complex) if policy.disable_trig else future_turns(policy, statistics, t)
    turned = scale * center * turns[:, None, None, :]
    queries = np.empty((*turned.shape[:-1], statistics.meta.head_dim))
    queries[..., real], queries[..., imag] = turned.real, turned.imag
    return Weights(
        torch.from_numpy(queries), torch.from_numpy(norms.astype(np.float64)), torch.from_numpy(real),
        torch.from_numpy(imag),
    )  # fmt: skip


def future_turns(policy: TriAttention, statistics: Calibration, t: int) -> np.ndarray[Any, np.dtype[np.complex128]]:
    """exp(i (t + δ) ω) per distance and band, complex128 [Δ, D/2]; their mean, [1, D/2], for aggregation `mean`."""
    turns: np.ndarray[Any, np.dtype[np.complex128]] = np.exp(
        1j * np.outer(np.array(policy.distances, np.float64) + t, statistics.frequencies)
    )
    return turns.mean(axis=0, keepdims=True) if policy.aggregation == "mean" else turns


def head_scores(keys: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Raw scores of one layer, fp32 [H_q, S]; keys post-RoPE [H, S, D], weights with L = 1 on the keys' device."""
    heads, _, dim = keys.shape
    keys = at_least_fp32(keys)
    length = torch.hypot(keys[..., weights.real], keys[..., weights.imag])
    total = weights.norms[0].to(keys.dtype).unflatten(0, (heads, -1)) @ length.transpose(1, 2)
    if len(weights.queries):
        # The largest over distances, one distance at a time: a score per distance would not fit beside the cache.
        products = (query[0].to(keys.dtype).view(heads, -1, dim) @ keys.transpose(1, 2) for query in weights.queries)
        largest = next(products)
        for product in products:
            largest = torch.maximum(largest, product)
        total = total + largest
    return total.flatten(0, 1)


def normalized(scores: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """z-scores with mean and population deviation of slots [start, end); scores [H, S]."""
    candidates = scores[:, start:end]
    deviation = candidates.std(dim=1, correction=0, keepdim=True).clamp_min(STD_FLOOR)
    return (scores - candidates.mean(dim=1, keepdim=True)) / deviation


def reference_scores(
    policy: TriAttention,
    statistics: Calibration,
    layer: int,
    head: int,
    keys: torch.Tensor,
    positions: torch.Tensor,
    t: int,
) -> torch.Tensor:
    """The paper's form for one query head: pre-RoPE keys [S, D] at logical positions [S]; fp64 [S]. For checks only."""
    real, imag = (torch.from_numpy(part) for part in statistics.bands())
    key = torch.complex(keys[:, real].double(), keys[:, imag].double())
    center = torch.complex(
        torch.from_numpy(statistics.center_real[layer, head]).double(),
        torch.from_numpy(statistics.center_imag[layer, head]).double(),
    )
    scale = torch.from_numpy(statistics.band_scale()).double() ** 2
    mean_abs = torch.from_numpy(statistics.abs_mean[layer, head]).double()
    norm_term = (scale * (mean_abs if policy.disable_mlr else mean_abs - center.abs()) * key.abs()).sum(1)
    if policy.disable_trig:
        return norm_term
    ahead = t - positions.double()[:, None] + torch.tensor(policy.distances, dtype=torch.float64)
    phase = ahead[..., None] * torch.from_numpy(statistics.frequencies) + (center.angle() - key.angle())[:, None]
    terms = (scale * center.abs() * key.abs())[:, None] * phase.cos()
    per_distance = terms.sum(2)
    return norm_term + (per_distance.mean(1) if policy.aggregation == "mean" else per_distance.amax(1))


def _statistics(policy: TriAttention, view: CacheView) -> Calibration:
    found = view.calibration
    if found is None:
        raise ValueError("this event has no calibration; make one with `evictbench calibrate MODEL --texts FILE`.")
    if policy.calibration not in ("", found.fingerprint):
        raise ValueError(
            f"this cell was planned with calibration {policy.calibration}, the engine has {found.fingerprint}; "
            "plan it again with the present file."
        )
    layers, _, bands = found.abs_mean.shape
    if max(view.layers) >= layers or view.need("keys").shape[3] != 2 * bands:
        raise ValueError(
            f"the calibration is for {layers} layers of head size {2 * bands}; the cache has layers up to "
            f"{max(view.layers)} of head size {view.need('keys').shape[3]}. Calibrate this model."
        )
    return found
