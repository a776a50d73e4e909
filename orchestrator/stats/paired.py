"""Per-problem differences of two arms, exact (statistics.md section 5.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """Two arms on the same problems; every method of this package takes it.

    numerators   int64 [n], d_i = numerators[i] / denominator = mean over samples of A - mean over samples of B
    denominator  least common multiple of all sample counts
    correct_*    int64 [n], right answers of each arm; samples_* int64 [n], answers that count, all >= 1
    """

    numerators: Counts
    denominator: int
    correct_a: Counts
    samples_a: Counts
    correct_b: Counts
    samples_b: Counts

    @property
    def n(self) -> int:
        """Problems, which are the independent units."""
        return int(self.numerators.size)

    @property
    def d(self) -> npt.NDArray[np.float64]:
        """float64 [n], per-problem differences."""
        return self.numerators / self.denominator

    @property
    def mean(self) -> float:
        """Mean difference; NaN without problems."""
        return float(self.numerators.sum()) / (self.denominator * self.n) if self.n else math.nan

    @property
    def sd(self) -> float:
        """Standard deviation of d_i with n - 1; NaN below two problems."""
        return float(np.std(self.d, ddof=1)) if self.n > 1 else math.nan

    @property
    def se(self) -> float:
        """Clustered standard error of the mean, sd / sqrt(n)."""
        return self.sd / math.sqrt(self.n) if self.n > 1 else math.nan

    @property
    def signs(self) -> tuple[int, int, int]:
        """Problems on which A is better, worse, equal."""
        wins, losses = int((self.numerators > 0).sum()), int((self.numerators < 0).sum())
        return wins, losses, self.n - wins - losses

    @property
    def within(self) -> float:
        """Part of Var d_i due to sampling answers; NaN where some problem has a single answer in an arm."""
        if self.n == 0 or min(self.samples_a.min(), self.samples_b.min()) < 2:
            return math.nan
        return float(
            np.mean(_answer_variance(self.correct_a, self.samples_a) + _answer_variance(self.correct_b, self.samples_b))
        )


def pair(correct_a: Counts, samples_a: Counts, correct_b: Counts, samples_b: Counts) -> Paired:
    """Pair two arms problem by problem; entry i of all four int arrays [n] belongs to the same problem.

    Sample counts may differ between arms and problems. Raises ValueError for shapes that differ, a count below 1 and
    more right answers than answers.
    """
    arrays = [np.asarray(values, dtype=np.int64) for values in (correct_a, samples_a, correct_b, samples_b)]
    if len({values.shape for values in arrays}) != 1 or arrays[0].ndim != 1:
        raise ValueError(f"arms do not cover the same problems: shapes {[values.shape for values in arrays]}")
    a, m_a, b, m_b = arrays
    for correct, samples in ((a, m_a), (b, m_b)):
        if (samples < 1).any() or (correct < 0).any() or (correct > samples).any():
            raise ValueError("each problem needs at least one answer, and no more right answers than answers")
    denominator = math.lcm(*{int(samples) for samples in np.concatenate([m_a, m_b])})
    return Paired(a * (denominator // m_a) - b * (denominator // m_b), denominator, a, m_a, b, m_b)


def _answer_variance(correct: Counts, samples: Counts) -> npt.NDArray[np.float64]:
    rate = correct / samples
    return rate * (1 - rate) / (samples - 1)
