"""The paired, problem-clustered bootstrap, exact: no random numbers, so no seed and no second answer.

Resampling n problems with replacement makes the mean a sum of n independent draws from the n observed differences;
its distribution is the n-fold convolution of theirs (statistics.md section 5.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from orchestrator.stats import lattice
from orchestrator.stats.paired import Paired

# Points of the distribution; sample counts with a huge common multiple go beyond it, equal counts never do.
MAX_POINTS = 1 << 22

# The distribution function is a sum of rounded terms: a quantile that it reaches exactly must count as reached.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Bootstrap:
    """Distribution of the resampled mean: probabilities [p] at (first + k * step) / (denominator * n)."""

    probabilities: npt.NDArray[np.float64]
    first: int
    step: int
    scale: int

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Percentile interval; quantile(q) is the smallest value whose distribution function reaches q."""
        tail = (1 - level) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def quantile(self, q: float) -> float:
        """Smallest value x with F(x) >= q."""
        return self._numerator(q) / self.scale

    def exact_interval(self, level: float = 0.95) -> tuple[Fraction, Fraction]:
        """interval, as the fractions that its ends are."""
        tail = (1 - level) / 2
        return Fraction(self._numerator(tail), self.scale), Fraction(self._numerator(1 - tail), self.scale)

    def _numerator(self, q: float) -> int:
        cumulative = np.cumsum(self.probabilities)
        place = int(np.searchsorted(cumulative, q - _ROUNDING))
        return self.first + min(place, self.probabilities.size - 1) * self.step

    @property
    def p_value(self) -> float:
        """min(1, 2 min(P(mean <= 0), P(mean >= 0))); 0 when all differences have one sign, so floor it before use."""
        values = self.first + self.step * np.arange(self.probabilities.size)
        below, above = self.probabilities[values <= 0].sum(), self.probabilities[values >= 0].sum()
        return float(min(1.0, 2 * min(below, above)))


@lru_cache(maxsize=4)
def distribution(paired: Paired, points: int = MAX_POINTS) -> Bootstrap | None:
    """The exact distribution, or None for no problems, or where it would need more than `points` points."""
    if paired.n == 0:
        return None
    low = int(paired.numerators.min())
    shifted = paired.numerators - low
    step = lattice.step(shifted)
    if paired.n * (int(shifted.max()) // step) >= points:
        return None
    pmf = np.bincount(shifted // step) / paired.n
    return Bootstrap(lattice.power(pmf, paired.n), low * paired.n, step, paired.denominator * paired.n)


def ideal_se(paired: Paired) -> float:
    """Standard deviation of the resampled mean, the limit of Monte-Carlo bootstraps; NaN without problems."""
    return float(np.std(paired.d)) / math.sqrt(paired.n) if paired.n else math.nan
