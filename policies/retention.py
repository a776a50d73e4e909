"""What is still cached: the facts of a trace, and the survival that theory predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

AGE_BINS = 32
"""Bins of an age histogram: bin 0 = age 0, bin i = ages [2^(i-1), 2^i), the last one open."""

U64 = npt.NDArray[np.uint64]


def age_histogram(ages: torch.Tensor) -> tuple[int, ...]:
    """Counts of ages in tokens (non-negative integers of any shape) in AGE_BINS log2 bins."""
    # The binary exponent of an integer is its bit length, exact below 2^53.
    bins = torch.frexp(ages.reshape(-1).double()).exponent.long().clamp_(max=AGE_BINS - 1)
    return tuple(torch.bincount(bins, minlength=AGE_BINS).tolist())


def prompt_share(positions: torch.Tensor, prompt: int) -> tuple[float, float]:
    """Share of the prompt's tokens (at least one) that is cached: (min, mean) over layers x heads of [L, H, S]."""
    shares = (positions < prompt).sum(dim=-1).double() / prompt
    return float(shares.min()), float(shares.mean())


def union_alive(positions: torch.Tensor) -> int:
    """Tokens cached by at least one (layer, KV head); positions int64 [L, H, S]."""
    return int(torch.unique(positions).numel())


def kept_crc(event: int, layers: Sequence[int], heads: Sequence[int], positions: torch.Tensor) -> int:
    """Hash of one event's kept sets, u64: positions [L, H, K] logical, global layer and head indices.

    The order of slots does not matter. Events, layers and heads combine by xor, so ranks merge in any order, and equal
    hashes mean equal kept sets wherever they were made (contracts.md section 3).
    """
    return int(_sets_hash(event, layers, heads, _u64(positions)))


def kept_crcs(events: Any, layers: Sequence[int], heads: Sequence[int], positions: torch.Tensor) -> U64:
    """kept_crc of several requests at once: events int64 [R], positions [R, L, H, K]; u64 [R]."""
    return _sets_hash(np.asarray(events), layers, heads, _u64(positions))


def victim_crc(n: Any, layers: Sequence[int], heads: Sequence[int], overwritten: Any) -> U64:
    """The same for in-place replacement: hash of the logical positions that tokens n overwrite.

    n int64 [...], overwritten [..., L, H] (torch or numpy); u64 of the leading shape, one per request. Combine by xor.
    """
    return _sets_hash(np.asarray(n), layers, heads, _u64(overwritten)[..., None])


def _sets_hash(time: Any, layers: Sequence[int], heads: Sequence[int], positions: U64) -> U64:
    members = _mix(positions + _STEP).sum(axis=-1, dtype=np.uint64)
    # axes first: numpy warns when scalars, unlike arrays, wrap around
    when = _mix(_u64(time)[..., None, None] + _STEP)
    where = _mix(_mix(when + _u64(layers)[:, None]) + _u64(heads))
    combined: U64 = np.bitwise_xor.reduce(_mix(where ^ members), axis=(-2, -1))
    return combined


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mix(words: U64) -> U64:
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014): a bijection of u64 that mixes every bit into all."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _u64(values: Any) -> U64:
    if isinstance(values, torch.Tensor):
        values = values.cpu().numpy()
    return np.asarray(values).astype(np.uint64)
