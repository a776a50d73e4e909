"""Exact tests on signs: printed beside every interval, deciding nothing (contracts.md section 6)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import stats

from orchestrator.stats import lattice
from orchestrator.stats.bootstrap import MAX_POINTS
from orchestrator.stats.paired import Paired


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact p of the direction per problem, ties dropped; 1 when all tie."""
    n = wins + losses
    return float(min(1.0, 2 * stats.binom.cdf(min(wins, losses), n, 0.5))) if n else 1.0


def sign_flip_test(paired: Paired, points: int = MAX_POINTS) -> float | None:
    """Two-sided exact randomisation p of the mean: share of the 2^n sign choices with |sum| >= |observed sum|.

    Exact when the arms are exchangeable on every problem. Never 0. None where the lattice is finer than `points`.
    """
    sizes = np.abs(paired.numerators[paired.numerators != 0])
    step = lattice.step(sizes)
    sizes = sizes // step
    total, observed = int(sizes.sum()), abs(int(paired.numerators.sum())) // step
    if total >= points:
        return None
    flipped = np.ones(1)
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        part = np.zeros(int(size) * int(count) + 1)
        part[:: int(size)] = _coins(int(count))
        flipped = lattice.convolve(flipped, part)
    # A sum of signed sizes is total - 2 * flipped.
    sums = np.abs(total - 2 * np.arange(flipped.size))
    return float(min(1.0, flipped[sums >= observed].sum()))


@lru_cache(maxsize=1024)
def _coins(count: int) -> npt.NDArray[np.float64]:
    """float64 [count + 1], probability of each number of heads among `count` fair coins."""
    return np.asarray(stats.binom.pmf(np.arange(count + 1), count, 0.5), dtype=np.float64)
