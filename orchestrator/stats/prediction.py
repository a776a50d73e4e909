"""Where a repetition of a published number would fall: prediction intervals on fixed problems.

The publication answered the same problems with its own samples, so two sources of noise count: our answers and theirs.
Problems are no source of noise, unless we ran only some of theirs. Pure functions; `rounding` is half a unit of the
last printed digit (contracts.md section 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from orchestrator.stats.intervals import UNKNOWN, Interval
from orchestrator.stats.paired import Counts, Paired

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Published:
    """How a number was made: problems, answers per problem (of each arm), half a unit of its last digit."""

    problems: int
    samples: int
    rounding: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """An estimate, its 95 % interval on fixed problems, and the interval for the published number."""

    estimate: float
    interval: Interval
    predicted: Interval


def of_accuracy(correct: Counts, samples: Counts, published: Published, level: float = 0.95) -> Prediction:
    """One arm's accuracy; entry i of the int arrays [n] is problem i, samples >= 1. Intervals stay within [0, 1]."""
    rates = correct / samples
    found = _predict(rates, _answer_variance(correct, samples), 1 / samples, published, level)
    return Prediction(found.estimate, _clipped(found.interval, 0.0), _clipped(found.predicted, 0.0))


def of_difference(paired: Paired, published: Published, level: float = 0.95) -> Prediction:
    """Difference of two arms that were published with the same number of samples; within [-1, 1].

    Their answers count as independent; arms that share a trace until their first eviction differ less.
    """
    arms = ((paired.correct_a, paired.samples_a), (paired.correct_b, paired.samples_b))
    variances = [_answer_variance(correct, samples) for correct, samples in arms]
    ours = variances[0] / paired.samples_a + variances[1] / paired.samples_b
    single = variances[0] + variances[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(single > 0, ours / single, 0.0)
    found = _predict(paired.d, single, share, published, level)
    return Prediction(found.estimate, _clipped(found.interval, -1.0), _clipped(found.predicted, -1.0))


def of_mean(sums: Floats, squares: Floats, samples: Counts, published: Published, level: float = 0.95) -> Prediction:
    """Mean over problems of a quantity per answer, such as its length, from sums and sums of squares [n]."""
    means = sums / samples
    several = samples > 1
    variance = np.full(means.shape, np.nan)
    variance[several] = (squares - sums * means)[several] / (samples[several] - 1)
    # A single answer says nothing about its problem's spread: that of the others, else the spread between problems.
    known = variance[several].mean() if several.any() else _variance(means)
    variance[~several] = known
    return _predict(means, np.maximum(variance, 0.0), 1 / samples, published, level)


def of_spread(runs: Floats, published_runs: int, rounding: float, level: float = 0.95) -> Prediction:
    """Standard deviation over runs of a mean, by the F distribution of a ratio of variances. runs [m], m >= 2."""
    m = runs.size
    if m < 2 or published_runs < 2:
        return Prediction(math.nan, UNKNOWN, UNKNOWN)
    sd = float(np.std(runs, ddof=1))
    tail = (1 - level) / 2
    own = [sd * math.sqrt((m - 1) / stats.chi2.ppf(q, m - 1)) for q in (1 - tail, tail)]
    theirs = [sd * math.sqrt(stats.f.ppf(q, published_runs - 1, m - 1)) for q in (tail, 1 - tail)]
    return Prediction(sd, (own[0], own[1]), (max(0.0, theirs[0] - rounding), theirs[1] + rounding))


def _predict(means: Floats, single: Floats, share: Floats, published: Published, level: float) -> Prediction:
    """From per-problem means [n], the variance of one answer [n], and what our number of answers leaves of it [n]."""
    n = means.size
    if n == 0:
        return Prediction(math.nan, UNKNOWN, UNKNOWN)
    estimate = float(means.mean())
    ours = float((single * share).mean()) / n
    theirs = float(single.mean()) / (published.samples * max(published.problems, n))
    # Problems that they had and we did not: our subset is one draw of theirs.
    unseen = _variance(means) * max(0.0, 1 / n - 1 / published.problems) if published.problems > n else 0.0
    quantile = float(stats.norm.ppf((1 + level) / 2))
    own = quantile * math.sqrt(ours + unseen)
    wide = quantile * math.sqrt(ours + unseen + theirs) + published.rounding
    return Prediction(estimate, (estimate - own, estimate + own), (estimate - wide, estimate + wide))


def _answer_variance(correct: Counts, samples: Counts) -> Floats:
    """Variance of one answer of each problem [n]; where none has several answers, that of a problem of mean accuracy.

    Unbiased where a problem has two answers or more. The bound for single answers is too large where problems differ,
    so a prediction from single answers is on the careful side.
    """
    rates = correct / samples
    several = samples > 1
    variance = np.empty(rates.shape)
    variance[several] = (rates * (1 - rates) * samples)[several] / (samples[several] - 1)
    overall = float(rates.mean()) if rates.size else 0.0
    variance[~several] = variance[several].mean() if several.any() else overall * (1 - overall)
    # No answer differed from another: half of one might have, else the interval would have no width.
    return variance if variance.any() else np.full(rates.shape, 0.5 / (int(samples.sum()) + 1))


def _variance(values: Floats) -> float:
    return float(np.var(values, ddof=1)) if values.size > 1 else 0.0


def _clipped(interval: Interval, low: float) -> Interval:
    return max(low, interval[0]), min(1.0, interval[1])


def count_interval(chances: Floats, level: float = 0.95) -> Interval:
    """Interval of the number of independent events that happen with chances [k]: exact Poisson-binomial quantiles."""
    pmf = np.ones(1)
    for chance in chances:
        pmf = np.convolve(pmf, [1 - chance, chance])
    cumulative = np.cumsum(pmf)
    tail = (1 - level) / 2
    low, high = (int(np.searchsorted(cumulative, q - 1e-12)) for q in (tail, 1 - tail))
    return float(low), float(min(high, chances.size))
