"""The only place of a verdict (contracts.md section 6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from orchestrator.stats import bootstrap
from orchestrator.stats.intervals import UNKNOWN, Interval, t_interval
from orchestrator.stats.paired import Paired

FEWEST_PROBLEMS = 10
FEWEST_NON_TIES = 6
# Below it the percentile interval is too narrow: 6.0 to 6.6 % instead of 5 % at 30 x 16.
PERCENTILE_FROM = 100


class Verdict(StrEnum):
    """What a comparison says. There is no "equal": what is not settled is unresolved."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNRESOLVED = "unresolved"


class IntervalKind(StrEnum):
    """Interval that decides."""

    T = "t"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True)
class Rule:
    """How to decide.

    alpha    two-sided level; a look of a sequential design has its own
    margin   half-width of the equivalence region as a fraction; None where equivalence was not asked for
    published  decide by the percentile interval at every size, as the paper does
    """

    alpha: float = 0.05
    margin: float | None = None
    published: bool = False


OURS = Rule()


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, the interval it rests on, and why it is unresolved where a rule forbids a claim."""

    verdict: Verdict
    interval: Interval
    kind: IntervalKind
    reason: str


def judge(paired: Paired, rule: Rule = OURS) -> Judgement:
    """Decide one comparison by the interval of its kind (deciding_kind); the rules are those of decide."""
    kind = deciding_kind(paired, rule)
    wins, losses, _ = paired.signs
    return decide(lambda level: interval(paired, kind, level), kind, paired.n, wins + losses, rule)


def decide(
    interval_at: Callable[[float], Interval], kind: IntervalKind, problems: int, differing: int, rule: Rule = OURS
) -> Judgement:
    """Decide from an interval as a function of its level.

    better / worse  the interval at 1 - alpha excludes 0
    equivalent      only with a margin: the interval at 1 - 2 alpha lies inside it (two one-sided tests)
    unresolved      otherwise, and always below FEWEST_PROBLEMS problems or FEWEST_NON_TIES problems that differ
    """
    low, high = interval_at(1 - rule.alpha)
    if problems < FEWEST_PROBLEMS:
        reason = f"too few: {problems} problems, {FEWEST_PROBLEMS} needed"
        return Judgement(Verdict.UNRESOLVED, (low, high), kind, reason)
    if differing < FEWEST_NON_TIES:
        reason = f"too few: {differing} problems differ, {FEWEST_NON_TIES} needed"
        return Judgement(Verdict.UNRESOLVED, (low, high), kind, reason)
    if excludes_zero((low, high)):
        return Judgement(Verdict.BETTER if low > 0 else Verdict.WORSE, (low, high), kind, "")
    if rule.margin is not None:
        inner_low, inner_high = interval_at(1 - 2 * rule.alpha)
        if -rule.margin < inner_low and inner_high < rule.margin:
            return Judgement(Verdict.EQUIVALENT, (low, high), kind, "")
    return Judgement(Verdict.UNRESOLVED, (low, high), kind, "")


def deciding_kind(paired: Paired, rule: Rule) -> IntervalKind:
    """t below PERCENTILE_FROM problems, and where the exact distribution is out of reach; else percentile."""
    small = paired.n < PERCENTILE_FROM and not rule.published
    return IntervalKind.T if small or bootstrap.distribution(paired) is None else IntervalKind.PERCENTILE


def interval(paired: Paired, kind: IntervalKind, level: float) -> Interval:
    """The interval of the mean difference at `level`, inside [-1, 1]; NaN where there is none."""
    if kind is IntervalKind.T:
        low, high = np.clip(t_interval(paired.d, level), -1.0, 1.0)
        return float(low), float(high)
    exact = bootstrap.distribution(paired)
    return exact.interval(level) if exact is not None else UNKNOWN


def excludes_zero(interval: Interval) -> bool:
    """Strictly; False for an unknown interval."""
    low, high = interval
    return not math.isnan(low) and (low > 0 or high < 0)


def withhold(judgement: Judgement, reason: str) -> Judgement:
    """The same interval without a claim: rows of an arm were not made by the policy that they name."""
    return replace(judgement, verdict=Verdict.UNRESOLVED, reason=reason)
