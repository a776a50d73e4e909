"""The exact distributions against plain enumeration and against scipy."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from orchestrator.stats import bootstrap, lattice, multiplicity, signs
from orchestrator.stats.paired import Paired, pair

answers = st.integers(1, 4).flatmap(lambda m: st.tuples(st.integers(0, m), st.just(m)))
problems = st.lists(st.tuples(answers, answers), min_size=1, max_size=5)


def make(pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> Paired:
    """Pairing from ((right, answers) of A, (right, answers) of B) per problem."""
    a, b = zip(*pairs, strict=True)
    return pair(*(np.array(values) for arm in (a, b) for values in zip(*arm, strict=True)))


def differences(paired: Paired) -> list[Fraction]:
    return [Fraction(int(value), paired.denominator) for value in paired.numerators]


@given(pairs=problems)
def test_unequal_samples_give_exact_differences(pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    assert differences(make(pairs)) == [Fraction(*a) - Fraction(*b) for a, b in pairs]


@settings(max_examples=60, deadline=None)
@given(pairs=problems, level=st.sampled_from([0.5, 0.9, 0.95]))
def test_bootstrap_is_the_distribution_of_all_resamples(
    pairs: list[tuple[tuple[int, int], tuple[int, int]]], level: float
) -> None:
    paired = make(pairs)
    means = sorted(
        sum(draw, Fraction(0)) / paired.n for draw in itertools.product(differences(paired), repeat=paired.n)
    )
    exact = bootstrap.distribution(paired)
    assert exact is not None

    def quantile(q: Fraction) -> Fraction:
        return next(x for k, x in enumerate(means, 1) if Fraction(k, len(means)) >= q)

    tail = (1 - Fraction(str(level))) / 2
    assert exact.interval(level) == pytest.approx([float(quantile(tail)), float(quantile(1 - tail))], abs=1e-12)
    below, above = sum(x <= 0 for x in means), sum(x >= 0 for x in means)
    assert exact.p_value == pytest.approx(min(1, 2 * min(below, above) / len(means)), abs=1e-12)
    assert exact.probabilities.sum() == pytest.approx(1, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(pairs=problems)
def test_sign_flip_is_the_share_of_all_sign_choices(pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    paired = make(pairs)
    observed = abs(sum(differences(paired)))
    sums = [
        abs(sum(sign * d for sign, d in zip(choice, differences(paired), strict=True)))
        for choice in itertools.product((-1, 1), repeat=paired.n)
    ]
    assert signs.sign_flip_test(paired) == pytest.approx(
        sum(float(s) >= float(observed) - 1e-12 for s in sums) / len(sums), abs=1e-12
    )


@given(wins=st.integers(0, 60), losses=st.integers(0, 60))
def test_sign_test_is_the_binomial_test(wins: int, losses: int) -> None:
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert signs.sign_test(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_swapping_the_arms_mirrors_everything() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, 5, 40), rng.integers(0, 4, 40)
    forward, backward = (
        pair(a, np.full(40, 4), b, np.full(40, 3)),
        pair(b, np.full(40, 3), a, np.full(40, 4)),
    )
    assert forward.mean == -backward.mean
    assert signs.sign_flip_test(forward) == pytest.approx(signs.sign_flip_test(backward), rel=1e-12)
    first, second = bootstrap.distribution(forward), bootstrap.distribution(backward)
    assert first is not None
    assert second is not None
    assert first.p_value == pytest.approx(second.p_value, rel=1e-9)


def test_large_sums_go_through_the_transform_and_agree_with_the_direct_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    pmf = np.array([0.1, 0.0, 0.3, 0.6])
    direct = lattice.power(pmf, 300)
    monkeypatch.setattr(lattice, "_DIRECT", 64)
    assert lattice.power(pmf, 300) == pytest.approx(direct, abs=1e-13)
    assert direct[:2] == pytest.approx([0.1**300, 0.0], rel=1e-12)


def test_sample_counts_without_a_usable_multiple_have_no_exact_distribution() -> None:
    counts = np.array([2**10, 3**6, 5**4, 7**3])
    paired = pair(np.ones(4, dtype=np.int64), counts, np.zeros(4, dtype=np.int64), counts)
    assert bootstrap.distribution(paired) is None
    assert signs.sign_flip_test(paired) is None


def test_what_does_not_pair_is_refused() -> None:
    one, two = np.array([1]), np.array([1, 1])
    with pytest.raises(ValueError, match="same problems"):
        pair(one, one, two, two)
    with pytest.raises(ValueError, match="at least one answer"):
        pair(one, np.array([0]), one, one)
    with pytest.raises(ValueError, match="no more right answers"):
        pair(np.array([2]), one, one, one)


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_adjusted_p_values(p: list[float]) -> None:
    values = np.array(p)
    assert multiplicity.benjamini_hochberg(values) == pytest.approx(stats.false_discovery_control(values), abs=1e-12)
    ranked = sorted(p)
    holm = [min(1.0, max((len(p) - k) * ranked[k] for k in range(ranked.index(x) + 1))) for x in p]
    # Equal p values share the adjustment of the last of them only through the running maximum.
    last = [min(1.0, max((len(p) - k) * ranked[k] for k in range(len(p)) if ranked[k] <= x)) for x in p]
    found = multiplicity.holm(values)
    assert all(low - 1e-12 <= x <= high + 1e-12 for low, x, high in zip(holm, found, last, strict=True))


def test_untested_comparisons_are_no_members_of_the_family() -> None:
    adjusted = multiplicity.holm(np.array([0.01, math.nan, 0.04]))
    assert adjusted[[0, 2]] == pytest.approx([0.02, 0.04])
    assert math.isnan(adjusted[1])
    assert multiplicity.benjamini_hochberg(np.array([])).size == 0


@pytest.mark.parametrize(("n", "m"), [(60, 16), (198, 4)])
def test_a_monte_carlo_bootstrap_agrees_at_published_sizes(n: int, m: int) -> None:
    rng, counts = np.random.default_rng(n), np.full(n, m)
    rate = rng.beta(0.5, 0.5, n)
    paired = pair(rng.binomial(m, rate), counts, rng.binomial(m, rate), counts)
    exact = bootstrap.distribution(paired)
    assert exact is not None
    # A resampled mean depends only on how often each distinct difference is drawn.
    values, seen = np.unique(paired.d, return_counts=True)
    means = rng.multinomial(n, seen / n, size=100_000) @ values / n
    low, high = exact.interval()
    # Monte-Carlo standard error of a 2.5 % share at 100,000 draws: 0.0005; the lattice adds one point's mass.
    assert (means < low - 1e-12).mean() <= 0.025 + 0.002
    assert (means <= low + 1e-12).mean() >= 0.025 - 0.002
    assert (means <= high + 1e-12).mean() >= 0.975 - 0.002
    assert means.std() == pytest.approx(bootstrap.ideal_se(paired), rel=0.02)
