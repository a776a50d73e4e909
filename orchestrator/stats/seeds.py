"""What common seeds buy: arms that draw the same random numbers agree more, and differ with less noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.stats.intervals import UNKNOWN, Interval, t_interval

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CommonSeeds:
    """correlation: of the two arms' answers to one problem under the same seed, beyond what the problem explains.

    variance_ratio  variance of the mean difference / what it would be with unrelated seeds; interval at 95 %
    samples_saved   share of the answers of unrelated seeds that give the same variance, 1 - within-problem ratio
    """

    correlation: float
    variance_ratio: float
    interval: Interval
    samples_saved: float
    problems: int
    samples: int


def common_seeds(a: Floats, b: Floats) -> CommonSeeds:
    """Gain from answers [n problems, m samples] of two arms (1 right, 0 wrong); column j used the same seed in both.

    Needs m >= 2 and answers that vary: from one answer per problem, chance and difficulty cannot be told apart.
    Everything is NaN otherwise.
    """
    n, m = a.shape
    if n < 2 or m < 2:
        return CommonSeeds(math.nan, math.nan, UNKNOWN, math.nan, n, m)
    da, db = a - a.mean(1, keepdims=True), b - b.mean(1, keepdims=True)
    variance_a, variance_b, covariance = ((x * y).sum(1) / (m - 1) for x, y in ((da, da), (db, db), (da, db)))
    d = a.mean(1) - b.mean(1)
    whole, shared = np.array([float(np.var(d, ddof=1))]), covariance.mean()
    unrelated = float(whole[0] + 2 * shared / m)
    geometric = math.sqrt(variance_a.mean() * variance_b.mean())
    within = (variance_a + variance_b).mean()
    if within == 0:
        return CommonSeeds(math.nan, math.nan, UNKNOWN, math.nan, n, m)
    return CommonSeeds(
        correlation=float(shared / geometric) if geometric > 0 else math.nan,
        variance_ratio=float(whole[0] / unrelated) if unrelated > 0 else math.nan,
        interval=_jackknife(d, covariance, m),
        samples_saved=float(2 * shared / within),
        problems=n,
        samples=m,
    )


def _jackknife(d: Floats, covariance: Floats, m: int) -> Interval:
    """95 % interval of the variance ratio, leaving out one problem at a time; never below 0."""
    n = d.size
    total, squares, shared = d.sum(), (d**2).sum(), covariance.sum()
    rest = n - 1
    means = (total - d) / rest
    variances = (squares - d**2 - rest * means**2) / (rest - 1) if rest > 1 else np.full(n, np.nan)
    unrelated = variances + 2 * (shared - covariance) / rest / m
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = variances / unrelated
    if not np.isfinite(ratios).all():
        return UNKNOWN
    full_variance = squares / (n - 1) - total**2 / n / (n - 1)
    whole = full_variance / (full_variance + 2 * shared / n / m)
    low, high = t_interval(n * whole - (n - 1) * ratios)
    return max(0.0, low), high
