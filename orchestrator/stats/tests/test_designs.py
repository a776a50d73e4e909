"""Looks, predictions, pools, common seeds, throughput: against published tables, plain formulas and simulation."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from orchestrator.stats import power, prediction, sequential
from orchestrator.stats.paired import pair
from orchestrator.stats.pooled import POOL_INPUT, Weights, pooled
from orchestrator.stats.prediction import Published
from orchestrator.stats.seeds import common_seeds
from orchestrator.stats.throughput import MEASUREMENTS, RATIOS, ratios


def test_levels_are_those_of_lan_and_demets() -> None:
    # Boundaries of O'Brien-Fleming spending at five equal looks, two-sided 5 %, as Lan-DeMets programs print them.
    published = [4.877, 3.357, 2.680, 2.290, 2.031]
    plan = sequential.schedule((1, 2, 3, 4, 5), 5)
    assert [float(stats.norm.isf(look.alpha / 2)) for look in plan] == pytest.approx(published, abs=6e-4)
    assert plan[-1].spent == pytest.approx(0.05)
    assert [look.number for look in sequential.reached(plan, 3)] == [1, 2, 3]


def test_the_end_is_a_look_and_a_single_look_is_no_design() -> None:
    assert [look.samples for look in sequential.schedule((2, 4), 16)] == [2, 4, 16]
    assert sequential.schedule((), 16)[0].alpha == pytest.approx(0.05)
    assert sequential.schedule((1,), 1000)[0].alpha < 1e-20
    for looks in ((2, 2), (4, 2), (0, 2), (2, 17)):
        with pytest.raises(ValueError, match="looks"):
            sequential.schedule(looks, 16)


def test_looks_keep_the_error_rate() -> None:
    rng, plan = np.random.default_rng(11), sequential.schedule((2, 4, 8), 16)
    paths = rng.normal(size=(200_000, 16)).cumsum(axis=1)
    crossed = np.zeros(len(paths), dtype=bool)
    for look in plan:
        crossed |= np.abs(paths[:, look.samples - 1]) / math.sqrt(look.samples) > stats.norm.isf(look.alpha / 2)
    # Standard error of the share at 200,000 paths: 0.0005.
    assert crossed.mean() == pytest.approx(0.05, abs=0.002)


@pytest.mark.parametrize(("ours", "theirs"), [(4, 2), (2, 16), (16, 4)])
def test_a_repetition_on_the_same_problems_falls_into_the_prediction(ours: int, theirs: int) -> None:
    rng, n = np.random.default_rng(ours), 200
    rate = rng.beta(0.6, 0.4, n)
    samples, hits, too_narrow = np.full(n, ours), 0, 0
    for _ in range(400):
        repetition = rng.binomial(theirs, rate).mean() / theirs
        found = prediction.of_accuracy(rng.binomial(ours, rate), samples, Published(n, theirs))
        hits += found.predicted[0] <= repetition <= found.predicted[1]
        too_narrow += found.interval[0] <= repetition <= found.interval[1]
    # Binomial standard error at 95 % of 400: 1.1 points.
    assert hits / 400 == pytest.approx(0.95, abs=0.035)
    assert too_narrow < hits


def test_running_some_of_their_problems_widens_the_prediction() -> None:
    rng = np.random.default_rng(2)
    rate, hits = rng.beta(0.6, 0.4, 500), 0
    for _ in range(400):
        repetition = rng.binomial(2, rate).mean() / 2
        some = rng.permutation(500)[:40]
        found = prediction.of_accuracy(rng.binomial(4, rate[some]), np.full(40, 4), Published(500, 2))
        hits += found.predicted[0] <= repetition <= found.predicted[1]
    assert hits / 400 == pytest.approx(0.95, abs=0.035)


def test_single_answers_use_a_bound_and_certain_answers_keep_a_width() -> None:
    ones = np.ones(100, dtype=np.int64)
    found = prediction.of_accuracy(np.array([1] * 80 + [0] * 20), ones, Published(100, 1, 0.005))
    # One answer per problem: binomial, ours and theirs, and half a digit of rounding.
    assert found.predicted[1] - 0.8 == pytest.approx(1.96 * math.sqrt(2 * 0.8 * 0.2 / 100) + 0.005, abs=1e-4)
    certain = prediction.of_accuracy(ones, ones, Published(100, 1))
    assert 0 < 1 - certain.predicted[0] < 0.03
    assert certain.predicted[1] == 1.0


def test_a_predicted_difference_and_mean_and_spread() -> None:
    rng, n, m = np.random.default_rng(4), 150, 4
    rate_a, rate_b = rng.beta(2, 1, n), rng.beta(1, 1, n)
    four, hits = np.full(n, m), 0
    for _ in range(300):
        theirs = (rng.binomial(2, rate_a) - rng.binomial(2, rate_b)).mean() / 2
        paired = pair(rng.binomial(m, rate_a), four, rng.binomial(m, rate_b), four)
        low, high = prediction.of_difference(paired, Published(n, 2)).predicted
        hits += low <= theirs <= high
    assert hits / 300 == pytest.approx(0.95, abs=0.04)
    lengths = rng.normal(1000, 50, (30, 4)) + rng.normal(0, 200, (30, 1))
    mean = prediction.of_mean(lengths.sum(1), (lengths**2).sum(1), np.full(30, 4), Published(30, 4))
    own = 1.96 * math.sqrt(lengths.var(axis=1, ddof=1).mean() / 120)
    assert mean.interval[1] - mean.estimate == pytest.approx(own, rel=1e-3)
    assert mean.predicted[1] - mean.estimate == pytest.approx(own * math.sqrt(2), rel=1e-3)
    spread = prediction.of_spread(np.array([0.1, 0.2, 0.3]), 2, 0.0)
    assert spread.estimate == pytest.approx(0.1)
    assert spread.predicted[1] > spread.interval[1] / 3
    assert math.isnan(prediction.of_spread(np.array([0.1]), 2, 0.0).estimate)


def test_a_count_of_certain_and_open_events() -> None:
    assert prediction.count_interval(np.array([1.0] * 31 + [0.0] * 29)) == (31.0, 31.0)
    low, high = prediction.count_interval(np.full(60, 0.5))
    assert [low, high] == stats.binom.ppf([0.025, 0.975], 60, 0.5).tolist()


def test_a_pool_of_one_cell_is_its_t_interval_and_strata_are_not_draws() -> None:
    rng = np.random.default_rng(6)
    d = rng.normal(0.1, 0.3, 40)
    one = pd.DataFrame({"task": "a", "model": "m", "problem_id": range(40), "difference": d})
    assert list(one) == list(POOL_INPUT)
    expected = stats.ttest_1samp(d, 0).confidence_interval()
    for weights in Weights:
        found = pooled(one, weights)
        assert found.interval() == pytest.approx((expected.low, expected.high))
    # Two tasks far apart: their distance is no noise.
    apart = pd.concat([one, one.assign(task="b", difference=d + 5)])
    assert pooled(apart).se == pytest.approx(pooled(one).se / math.sqrt(2))
    assert math.isnan(pooled(one.head(1)).se)
    assert pooled(one.head(0)).problems == 0


def test_correlated_models_are_not_twice_the_evidence() -> None:
    rng, rejected = np.random.default_rng(8), 0
    for _ in range(60):
        shared = rng.normal(0, 0.3, 50)
        table = pd.concat(
            pd.DataFrame({"task": "a", "model": model, "problem_id": range(50), "difference": shared + noise})
            for model, noise in zip("xyz", rng.normal(0, 0.1, (3, 50)), strict=True)
        )
        low, high = pooled(table).interval()
        rejected += low > 0 or high < 0
    # Binomial standard error at 5 % of 60: 2.8 points; three times the evidence would reject 25 %.
    assert rejected / 60 < 0.15


def test_equivalence_power_is_the_share_of_equivalent_nulls() -> None:
    rng, n, sd = np.random.default_rng(9), 500, 0.2
    means = rng.normal(0, sd, (4000, n)).mean(1)
    half = stats.t.ppf(0.95, n - 1) * sd / math.sqrt(n)
    share = float((np.abs(means) + half < 0.02).mean())
    assert power.equivalence_power(sd / math.sqrt(n), 0.02, n - 1) == pytest.approx(share, abs=0.03)
    assert power.equivalence_power(0.05, 0.02, 59) == 0.0
    assert power.equivalence_power(0.0, 0.02, 59) == 1.0


def test_common_seeds_against_their_model() -> None:
    rng, n, m = np.random.default_rng(10), 4000, 4
    shared, rate = rng.random((n, m)), rng.beta(1, 1, (n, 1))
    fresh = np.where(rng.random((n, m)) < 0.5, shared, rng.random((n, m)))
    found = common_seeds((shared < rate).astype(float), (fresh < rate).astype(float))
    # Half of the seeds are shared: half of the within-problem variance is common to both arms.
    assert found.correlation == pytest.approx(0.5, abs=0.03)
    assert found.variance_ratio == pytest.approx(0.5, abs=0.03)
    assert found.samples_saved == pytest.approx(0.5, abs=0.03)
    assert found.interval[0] < found.variance_ratio < found.interval[1]
    assert math.isnan(common_seeds(np.ones((5, 1)), np.ones((5, 1))).correlation)


def measurement(arm: str, number: int, seconds: float, **other: object) -> dict[str, object]:
    defaults = {"session": "s", "warm_up": False, "tokens": 1000.0, "preemptions": 0, "prefix_cache_hit_rate": 0.0}
    return {"arm": arm, "round": number, "seconds": seconds, **defaults, **other}


def test_throughput_ratios_are_formed_within_a_round() -> None:
    # Every round is slower than the last, and the ratio is 2 throughout but for a little noise.
    drift, noise = (1.0, 2.0, 4.0), (1.0, 1.02, 0.98)
    rows = [measurement("full", k, 10 * slow) for k, slow in enumerate(drift)]
    rows += [measurement("random", k, 5 * slow * noise[k]) for k, slow in enumerate(drift)]
    rows += [measurement(arm, 3, 1.0, warm_up=True) for arm in ("full", "random")]
    rows += [measurement("full", 4, 9.0), measurement("random", 4, 1.0, preemptions=2)]
    table = ratios(pd.DataFrame(rows, columns=list(MEASUREMENTS)).astype(dict(MEASUREMENTS)), "full")
    assert list(table) == list(RATIOS)
    table = table.set_index("arm")
    random = pd.Series(table.loc["random"])
    logs = np.log([2 / x for x in noise])
    expected = stats.ttest_1samp(logs, 0).confidence_interval()
    assert random["ratio"] == pytest.approx(np.exp(logs.mean()))
    assert (random["low"], random["high"]) == pytest.approx((np.exp(expected.low), np.exp(expected.high)))
    assert random[["rounds", "faster", "slower", "excluded"]].tolist() == [3, 3, 0, 1]
    assert table["ratio"]["full"] == 1.0
    with pytest.raises(ValueError, match="'fll' has no measurement; arms: full, random"):
        ratios(pd.DataFrame(rows), "fll")


def test_two_rounds_have_no_interval() -> None:
    rows = [measurement(arm, k, 1.0) for arm in ("full", "random") for k in range(2)]
    found = dict(ratios(pd.DataFrame(rows), "full").iloc[1])
    assert (math.isnan(found["low"]), found["reason"]) == (True, "too few: 2 rounds, 3 needed")
