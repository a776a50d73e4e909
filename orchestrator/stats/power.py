"""What a comparison can see: before it runs, from its size; after it, from its own spread."""

from __future__ import annotations

import math

from scipy import special, stats

ALPHA = 0.05
POWER = 0.80


def detectable_difference(sd: float, n_problems: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """Smallest true mean difference that a two-sided t test at `alpha` finds with probability `power`.

    sd is that of the per-problem differences d_i, in the unit of the answer. NaN below two problems.
    The usual approximation (t_{1-alpha/2} + t_{power}) * sd / sqrt(n); no verdict can be given where it is NaN.
    """
    return detectable_from_se(sd / math.sqrt(n_problems), n_problems - 1, alpha, power) if n_problems > 1 else math.nan


def detectable_from_se(se: float, freedom: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """The same from a standard error and its degrees of freedom."""
    return float((special.stdtrit(freedom, 1 - alpha / 2) + special.stdtrit(freedom, power)) * se)


def equivalence_power(se: float, margin: float, freedom: float, alpha: float = ALPHA) -> float:
    """Chance that two one-sided t tests at `alpha` find equivalence within `margin` when the true difference is 0.

    Normal approximation around the standard error se of the mean difference; NaN where se is unknown.
    """
    if math.isnan(se) or freedom < 1:
        return math.nan
    if se == 0:
        return 1.0
    room = margin - float(special.stdtrit(freedom, 1 - alpha)) * se
    return float(max(0.0, 2 * stats.norm.cdf(room / se) - 1))


def planned_sd(samples: int, accuracy: float = 0.5) -> float:
    """Expected sd of d_i between two arms of `samples` samples each, when nothing has been measured yet.

    Model: solving rates of problems follow a Beta law with mean `accuracy` and a + b = 2 (uniform at 0.5), the arms
    share them and answer independently; then Var d_i = 2 * (2/3) * accuracy * (1 - accuracy) / samples. This gives
    standard errors of 2.6, 2.1 and 1.1 points at 30 x 16, 198 x 4 and 500 x 2 (accuracy .5, .5 and .9).
    Arms that share a trace until their first eviction differ less, so this is on the careful side.
    """
    return math.sqrt(4 / 3 * accuracy * (1 - accuracy) / samples)


def planned_difference(n_problems: int, samples: int, accuracy: float = 0.5) -> float:
    """detectable_difference of a comparison that has not run, by planned_sd; a fraction, not points."""
    return detectable_difference(planned_sd(samples, accuracy), n_problems)


def problems_needed(sd: float, difference: float, alpha: float = ALPHA, power: float = POWER) -> int | None:
    """Fewest problems at which `difference` is detectable; None where the difference is 0 or sd is unknown."""
    if difference == 0 or math.isnan(sd) or math.isnan(difference):
        return None
    low, high = 2, 4
    while detectable_difference(sd, high, alpha, power) > abs(difference):
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        if detectable_difference(sd, middle, alpha, power) > abs(difference):
            low = middle + 1
        else:
            high = middle
    return low


def sample_factor(sd: float, within: float, n_problems: int, difference: float) -> float | None:
    """By how much to multiply the samples of every problem so that `difference` becomes detectable, problems fixed.

    within  part of Var d_i that comes from sampling answers, i.e. mean of s2_A/m_A + s2_B/m_B; NaN when m = 1
    None where no number of samples can do it (problems differ too much), or the parts are unknown.
    """
    if difference == 0 or n_problems < 2 or math.isnan(within) or within <= 0:
        return None
    allowed = (sd * abs(difference) / detectable_difference(sd, n_problems)) ** 2 if sd > 0 else math.inf
    between = max(0.0, sd * sd - within)
    return max(1.0, within / (allowed - between)) if allowed > between else None
