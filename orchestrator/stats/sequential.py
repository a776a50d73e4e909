"""Looks at partial results without inflating false positives: group-sequential levels (contracts.md section 6).

Looks are declared before the run, as samples per problem. Each tests at its own two-sided level alpha_k, spent after
O'Brien and Fleming in the form of Lan and DeMets: almost nothing early, nearly all of alpha at the last look. Estimates
at m samples and at M of the same problems correlate with sqrt(m / M) when problems agree on the difference, and more
when they do not; the levels are exact in the first case and careful in the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

from orchestrator.stats.paired import Paired
from orchestrator.stats.verdict import OURS, deciding_kind, interval

# Points of the density between two boundaries; halving the grid moves no level by 1e-5.
_POINTS = 801
# Where the first looks have next to nothing to spend, the boundary lies out here.
_FARTHEST = 12.0


@dataclass(frozen=True, slots=True)
class Look:
    """One declared look: after `samples` answers per problem, spending `spent` of alpha so far, testing at `alpha`."""

    number: int
    samples: int
    spent: float
    alpha: float

    @property
    def level(self) -> float:
        """Level of this look's interval, 1 - alpha."""
        return 1 - self.alpha


def schedule(looks: Sequence[int], samples: int, alpha: float = 0.05) -> tuple[Look, ...]:
    """The looks of a design that ends at `samples` answers per problem; the end is a look, declared or not.

    Raises ValueError for looks that do not rise, or lie beyond the end.
    """
    declared = tuple(looks)
    if any(second <= first for first, second in pairwise(declared)):
        raise ValueError(f"looks {list(declared)} do not rise")
    if declared and (declared[0] < 1 or declared[-1] > samples):
        raise ValueError(f"looks {list(declared)} are not all between 1 and the {samples} samples of the job")
    if not declared or declared[-1] < samples:
        declared += (samples,)
    return _schedule(declared, alpha)


@dataclass(frozen=True, slots=True)
class Stopping:
    """A design that ends at the first look where every interval is narrow: `most` samples per problem at the latest,
    `width` in points. It never looks at signs, so what stands at its end is judged as if planned that way."""

    most: int
    width: float


def between(least: int, most: int, declared: Sequence[int] = ()) -> tuple[int, ...]:
    """Looks of a design that may end early: those declared in [least, most), else least doubled; most is the last."""
    looks = [look for look in declared if least <= look < most]
    return (*(looks or [look for k in range(32) if (look := least * 2**k) < most]), most)


def width(paired: Paired) -> float:
    """Width in points of the 95 % interval that decides; infinite where there is none yet."""
    low, high = interval(paired, deciding_kind(paired, OURS), 1 - OURS.alpha)
    return math.inf if math.isnan(low) else 100 * (high - low)


def reached(plan: Sequence[Look], samples: int) -> tuple[Look, ...]:
    """Looks that may be taken when every problem has `samples` answers in both arms."""
    return tuple(look for look in plan if look.samples <= samples)


def spending(fraction: float, alpha: float) -> float:
    """Alpha spent at an information fraction in (0, 1]; on each side 2 - 2 Phi(z_{alpha/4} / sqrt(fraction))."""
    return float(4 * stats.norm.sf(stats.norm.isf(alpha / 4) / math.sqrt(fraction)))


@lru_cache(maxsize=64)
def _schedule(samples: tuple[int, ...], alpha: float) -> tuple[Look, ...]:
    """Boundaries by recursive integration of the density of the score on the paths that have not stopped."""
    fractions = [count / samples[-1] for count in samples]
    looks: list[Look] = []
    grid, density = np.zeros(1), np.ones(1)
    last_fraction = spent = 0.0
    for number, (count, fraction) in enumerate(zip(samples, fractions, strict=True), 1):
        allowed = spending(fraction, alpha)
        step = math.sqrt(fraction - last_fraction)
        boundary = _boundary(grid, density, step, math.sqrt(fraction), allowed - spent)
        looks.append(Look(number, count, allowed, float(2 * stats.norm.sf(boundary))))
        edge = boundary * math.sqrt(fraction)
        points = np.linspace(-edge, edge, _POINTS)
        kernel = stats.norm.pdf((points[:, None] - grid[None, :]) / step) / step
        weights = _weights(grid)
        grid, density = points, kernel @ (density * weights)
        last_fraction, spent = fraction, allowed
    return tuple(looks)


def _boundary(
    grid: np.ndarray[tuple[int], np.dtype[np.float64]],
    density: np.ndarray[tuple[int], np.dtype[np.float64]],
    step: float,
    scale: float,
    allowed: float,
) -> float:
    """Boundary of |z| at which the paths that go on cross with probability `allowed`."""
    weights = density * _weights(grid)

    def crossing(z: float) -> float:
        above = stats.norm.sf((z * scale - grid) / step) + stats.norm.cdf((-z * scale - grid) / step)
        return float((weights * above).sum()) - allowed

    # So little to spend that no z within reach spends less: the look exists and cannot reject.
    return _FARTHEST if crossing(_FARTHEST) > 0 else float(optimize.brentq(crossing, 0.0, _FARTHEST, xtol=1e-10))


def _weights(
    grid: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Simpson's weights of an odd, even-spaced grid; a single point has all the mass."""
    if grid.size == 1:
        return np.ones(1)
    weights = np.full(grid.size, 2.0)
    weights[1::2] = 4.0
    weights[0] = weights[-1] = 1.0
    return weights * (grid[1] - grid[0]) / 3
