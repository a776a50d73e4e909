"""Everything that is printed about one comparison, from one pairing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.stats import bootstrap, power, signs
from orchestrator.stats.intervals import Interval
from orchestrator.stats.paired import Paired
from orchestrator.stats.verdict import OURS, IntervalKind, Judgement, Rule, interval, judge


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison. Differences and intervals are fractions (A - B); p values two-sided; NaN where undefined.

    judgement   the verdict with the interval that decides
    t, percentile  both 95 % intervals, whichever decides
    detectable  smallest difference found with 80 % probability at this size and spread; NaN where all d_i are equal,
                since a spread that was not seen is not a spread of 0
    problems_needed  problems at which the measured difference would be detectable; None where it is 0
    sample_factor  multiple of the samples that would do it on the same problems; None where no number does
    """

    n_problems: int
    samples_a: int
    samples_b: int
    difference: float
    judgement: Judgement
    t: Interval
    percentile: Interval
    p_bootstrap: float
    p_sign: float
    p_signflip: float
    wins: int
    losses: int
    ties: int
    detectable: float
    problems_needed: int | None
    sample_factor: float | None


def compare(paired: Paired, rule: Rule = OURS) -> Comparison:
    """Summarise one pairing. Pure; the same pairing gives the same numbers to the last bit."""
    exact = bootstrap.distribution(paired)
    flip = signs.sign_flip_test(paired)
    wins, losses, ties = paired.signs
    # Counted on the exact fractions: the sd of equal floats need not be exactly 0.
    spread = len(np.unique(paired.numerators)) > 1
    return Comparison(
        n_problems=paired.n,
        samples_a=int(paired.samples_a.sum()),
        samples_b=int(paired.samples_b.sum()),
        difference=paired.mean,
        judgement=judge(paired, rule),
        t=interval(paired, IntervalKind.T, 1 - rule.alpha),
        percentile=interval(paired, IntervalKind.PERCENTILE, 1 - rule.alpha),
        p_bootstrap=exact.p_value if exact is not None else math.nan,
        p_sign=signs.sign_test(wins, losses),
        p_signflip=flip if flip is not None else math.nan,
        wins=wins,
        losses=losses,
        ties=ties,
        detectable=power.detectable_difference(paired.sd, paired.n, rule.alpha) if spread else math.nan,
        problems_needed=power.problems_needed(paired.sd, paired.mean, rule.alpha),
        sample_factor=power.sample_factor(paired.sd, paired.within, paired.n, paired.mean),
    )
