"""Pooled differences over tasks and models, clustered by problem across models.

A problem that several models answered is one cluster: its differences go up and down together. Tasks are strata, not
draws: the pooled difference speaks about these tasks and models, and about problems like theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from orchestrator.stats.intervals import UNKNOWN, Interval

# Input of pooled(): one row per task, model and problem with the problem's difference (a fraction).
POOL_INPUT: Mapping[str, str] = {"task": "object", "model": "object", "problem_id": "object", "difference": "float64"}


class Weights(StrEnum):
    """cells: every (task, model) counts alike, as in published averages. problems: every problem counts alike."""

    CELLS = "cells"
    PROBLEMS = "problems"


@dataclass(frozen=True, slots=True)
class Pooled:
    """A pooled mean difference. freedom: degrees of freedom (Satterthwaite); signs are those of the clusters' means."""

    difference: float
    se: float
    freedom: float
    cells: int
    problems: int
    wins: int
    losses: int
    ties: int

    def interval(self, level: float = 0.95) -> Interval:
        """Student's interval inside [-1, 1]; NaN where the spread is unknown."""
        if math.isnan(self.se):
            return UNKNOWN
        half = float(stats.t.ppf((1 + level) / 2, self.freedom)) * self.se if self.se else 0.0
        return max(-1.0, self.difference - half), min(1.0, self.difference + half)


def pooled(table: pd.DataFrame, weights: Weights = Weights.CELLS) -> Pooled:
    """Pool the differences of a frame with the columns POOL_INPUT; each (task, model, problem) once."""
    if table.empty:
        return Pooled(math.nan, math.nan, math.nan, 0, 0, 0, 0, 0)
    cells = table.groupby(["task", "model"])["difference"]
    clusters = table.groupby(["task", "problem_id"])["difference"].mean()
    if weights is Weights.CELLS:
        difference = float(cells.mean().mean())
        # What each problem adds to the estimate's error: its distance from its cell's mean, by the cell's weight.
        influence = (table["difference"] - cells.transform("mean")) / (cells.transform("size") * cells.ngroups)
        summed = influence.groupby([table["task"], table["problem_id"]]).sum()
    else:
        difference = float(clusters.mean())
        summed = (clusters - clusters.groupby(level="task").transform("mean")) / len(clusters)
    se, freedom = _stratified([part.to_numpy(np.float64) for _, part in summed.groupby(level="task")])
    # Differences are ratios of small integers; a mean over models that should be 0 may miss it by a rounding.
    signs = np.sign(clusters.to_numpy(np.float64).round(12))
    wins, losses = int((signs > 0).sum()), int((signs < 0).sum())
    return Pooled(difference, se, freedom, cells.ngroups, len(clusters), wins, losses, len(clusters) - wins - losses)


def _stratified(strata: list[npt.NDArray[np.float64]]) -> tuple[float, float]:
    """Standard error of a sum over independent strata of centred terms, and Satterthwaite's degrees of freedom."""
    if any(part.size < 2 for part in strata):
        return math.nan, math.nan
    variances = [float((part**2).sum()) * part.size / (part.size - 1) for part in strata]
    total = sum(variances)
    if total == 0:
        return 0.0, float(sum(part.size - 1 for part in strata))
    freedom = total**2 / sum(v**2 / (part.size - 1) for v, part in zip(variances, strata, strict=True))
    return math.sqrt(total), freedom
