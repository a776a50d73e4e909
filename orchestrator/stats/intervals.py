"""Intervals of one mean and of one proportion."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)


def t_interval(values: npt.NDArray[np.float64], level: float = 0.95) -> Interval:
    """Student's interval of the mean of `values` [n]; NaN below two values."""
    n = values.size
    if n < 2:
        return UNKNOWN
    # stats.t.ppf is the same number, a hundred times slower: it checks and broadcasts its arguments first.
    half = float(special.stdtrit(n - 1, (1 + level) / 2) * values.std(ddof=1) / math.sqrt(n))
    mean = float(values.mean())
    return mean - half, mean + half


def wilson(successes: float, n: int, level: float = 0.95) -> Interval:
    """Wilson's interval of a proportion: inside [0, 1], and of positive width at 0 and n successes. NaN for n = 0."""
    if n == 0:
        return UNKNOWN
    z = float(special.ndtri((1 + level) / 2))
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(rate * (1 - rate) / n + spread / (4 * n))
    # Rounding must not leave an interval that excludes its own estimate.
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))
