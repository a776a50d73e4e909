"""Accuracy of one arm with its interval (contracts.md section 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orchestrator.stats.intervals import UNKNOWN, t_interval, wilson
from orchestrator.stats.paired import Counts


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean over problems of the share of right answers, its 95 % interval and the rule that gave it (wilson or t)."""

    mean: float
    low: float
    high: float
    rule: str


def accuracy(correct: Counts, samples: Counts) -> Accuracy:
    """One arm; entry i of the int arrays [n] is problem i, samples all >= 1.

    One sample per problem: Wilson. More: t on the problems' means, clipped to [0, 1]. Where these do not vary (all 0,
    all 1, a single problem) t has no width to give, and Wilson over the problems takes its place.
    """
    n = int(samples.size)
    if n == 0:
        return Accuracy(math.nan, *UNKNOWN, "none")
    means = correct / samples
    mean = float(means.mean())
    if samples.max() == 1 or n == 1 or np.ptp(means) == 0:
        return Accuracy(mean, *wilson(float(means.sum()), n), "wilson")
    low, high = t_interval(means)
    return Accuracy(mean, max(0.0, low), min(1.0, high), "t")
