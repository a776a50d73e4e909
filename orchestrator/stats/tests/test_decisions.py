"""Verdict rules, one arm's interval, power: against contracts.md section 6 and plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from orchestrator.stats import power
from orchestrator.stats.arms import accuracy
from orchestrator.stats.comparison import compare
from orchestrator.stats.intervals import t_interval, wilson
from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.verdict import IntervalKind, Rule, Verdict, judge


def binary(wins: int, losses: int, ties: int) -> Paired:
    """One sample per arm with the given number of discordant problems."""
    a = np.array([1] * wins + [0] * losses + [1] * ties)
    b = np.array([0] * wins + [1] * losses + [1] * ties)
    return pair(a, np.ones_like(a), b, np.ones_like(b))


@pytest.mark.parametrize(
    ("wins", "losses", "ties", "verdict"),
    [
        (9, 0, 0, Verdict.UNRESOLVED),  # nine problems
        (5, 0, 95, Verdict.UNRESOLVED),  # five that differ
        (6, 0, 4, Verdict.BETTER),
        (0, 6, 4, Verdict.WORSE),
        (10, 0, 0, Verdict.BETTER),  # no spread at all
        (6, 5, 9, Verdict.UNRESOLVED),
        (0, 0, 500, Verdict.UNRESOLVED),
        (0, 0, 0, Verdict.UNRESOLVED),
    ],
)
def test_verdicts(wins: int, losses: int, ties: int, verdict: Verdict) -> None:
    judgement = judge(binary(wins, losses, ties))
    assert judgement.verdict is verdict
    assert judgement.reason.startswith("too few") == (wins + losses + ties < 10 or wins + losses < 6)


def test_the_t_interval_decides_below_100_problems_and_the_exact_one_from_there() -> None:
    assert judge(binary(10, 5, 84)).kind is IntervalKind.T
    assert judge(binary(10, 5, 85)).kind is IntervalKind.PERCENTILE
    assert judge(binary(10, 5, 84), Rule(published=True)).kind is IntervalKind.PERCENTILE
    # The percentile interval excludes 0 and the t interval does not.
    paired = binary(6, 1, 5)
    assert judge(paired).verdict is Verdict.UNRESOLVED
    assert judge(paired, Rule(published=True)).verdict is Verdict.BETTER


def test_equivalence_only_where_asked_and_only_inside_the_margin() -> None:
    close = binary(10, 10, 4980)
    assert judge(close).verdict is Verdict.UNRESOLVED
    assert judge(close, Rule(margin=0.02)).verdict is Verdict.EQUIVALENT
    assert judge(close, Rule(margin=0.001)).verdict is Verdict.UNRESOLVED
    # A difference that excludes 0 stays a difference, however small.
    assert judge(binary(40, 10, 4950), Rule(margin=0.02)).verdict is Verdict.BETTER
    # All ties: too few to say anything, equivalence included.
    assert judge(binary(0, 0, 5000), Rule(margin=0.02)).verdict is Verdict.UNRESOLVED


def test_a_stricter_level_is_a_wider_interval() -> None:
    paired = binary(14, 4, 60)
    assert judge(paired, Rule(alpha=0.05)).verdict is Verdict.BETTER
    assert judge(paired, Rule(alpha=0.001)).verdict is Verdict.UNRESOLVED


def test_nothing_common_is_a_comparison_without_numbers() -> None:
    nothing = compare(binary(0, 0, 0))
    assert (nothing.n_problems, nothing.judgement.verdict) == (0, Verdict.UNRESOLVED)
    assert math.isnan(nothing.difference)
    assert math.isnan(nothing.detectable)
    assert nothing.problems_needed is None


@pytest.mark.parametrize("counts", [(0, 0, 50), (0, 50, 0)])
def test_no_spread_detects_nothing_that_could_be_named(counts: tuple[int, int, int]) -> None:
    assert math.isnan(compare(binary(*counts)).detectable)
    assert compare(binary(1, 0, 49)).detectable > 0


def test_equal_thirds_are_no_spread_though_their_sd_rounds() -> None:
    threes = np.full(20, 3)
    paired = pair(np.tile([2, 3], 10), threes, np.tile([1, 2], 10), threes)
    assert paired.sd > 0
    assert math.isnan(compare(paired).detectable)


def test_one_sample_per_problem_uses_wilson() -> None:
    found = accuracy(np.array([1, 1, 0, 1]), np.ones(4, dtype=np.int64))
    reference = stats.binomtest(3, 4).proportion_ci(method="wilson")
    assert (found.mean, found.rule) == (0.75, "wilson")
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_several_samples_use_t_on_problem_means_clipped() -> None:
    correct, samples = np.array([4, 4, 4, 3, 4, 1]), np.full(6, 4)
    found = accuracy(correct, samples)
    low, high = stats.ttest_1samp(correct / samples, 0).confidence_interval()
    assert found.low == pytest.approx(low)
    assert (found.high, found.rule) == (1.0, "t")
    assert high > 1


@pytest.mark.parametrize("right", [0, 4])
def test_all_right_or_all_wrong_has_an_interval_of_positive_width(right: int) -> None:
    found = accuracy(np.full(20, right), np.full(20, 4))
    assert (found.low, found.high) == pytest.approx(wilson(20 * right / 4, 20))
    assert found.high - found.low > 0.1
    assert found.low <= found.mean <= found.high
    assert accuracy(np.array([3]), np.array([4])).rule == "wilson"
    assert math.isnan(accuracy(np.array([]), np.array([])).mean)


def test_t_interval_is_scipys() -> None:
    values = np.array([0.5, -0.25, 0.0, 0.75])
    reference = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert t_interval(values, 0.9) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_the_detectable_difference_is_found_four_times_in_five() -> None:
    rng, n, sd = np.random.default_rng(3), 60, 0.15
    effect = power.detectable_difference(sd, n)
    draws = rng.normal(effect, sd, (20_000, n))
    t = draws.mean(1) / (draws.std(1, ddof=1) / math.sqrt(n))
    found = float((np.abs(t) > stats.t.ppf(0.975, n - 1)).mean())
    # Standard error of the share at 20,000 repeats is 0.003.
    assert found == pytest.approx(0.8, abs=0.012)


def test_problems_needed_is_the_turning_point() -> None:
    needed = power.problems_needed(0.3, 0.05)
    assert needed is not None
    assert power.detectable_difference(0.3, needed) <= 0.05 < power.detectable_difference(0.3, needed - 1)
    assert power.problems_needed(0.3, 0.0) is None
    assert power.problems_needed(math.nan, 0.1) is None


def test_sample_factor_makes_the_difference_detectable_or_says_that_nothing_does() -> None:
    sd, within, n = 0.3, 0.06, 200
    between = sd**2 - within
    factor = power.sample_factor(sd, within, n, 0.045)
    assert factor is not None
    assert power.detectable_difference(math.sqrt(between + within / factor), n) == pytest.approx(0.045)
    assert power.sample_factor(sd, within, n, 0.01) is None
    assert power.sample_factor(sd, within, n, 0.5) == 1.0
    assert power.sample_factor(sd, math.nan, n, 0.045) is None


def test_planned_sd_agrees_with_its_model() -> None:
    rng = np.random.default_rng(5)
    rate = rng.beta(1, 1, 200_000)
    d = rng.binomial(16, rate) / 16 - rng.binomial(16, rate) / 16
    assert power.planned_sd(16) == pytest.approx(d.std(), rel=0.01)
    assert power.planned_difference(30, 16) == pytest.approx(0.0764, abs=0.0001)


def test_within_problem_variance_is_unbiased() -> None:
    rng, rate, m = np.random.default_rng(9), 0.3, 4
    a, b = rng.binomial(m, rate, 100_000), rng.binomial(m, rate, 100_000)
    samples = np.full(a.size, m)
    assert pair(a, samples, b, samples).within == pytest.approx(2 * rate * (1 - rate) / m, rel=0.01)
    assert math.isnan(binary(3, 2, 1).within)
