"""Throughput as ratios formed within a round: never across sessions, never mixed with accuracy runs.

A round runs every arm once, in turn; what drifts between rounds (clocks, heat, neighbours) cancels in the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

# What a measurement must carry: contracts.md section 4.
MEASUREMENTS: Mapping[str, str] = {
    **dict.fromkeys(("arm", "session"), "object"),
    "round": "int64",
    "warm_up": "bool",
    **dict.fromkeys(("tokens", "seconds", "prefix_cache_hit_rate"), "float64"),
    "preemptions": "int64",
}
# ratio: geometric mean over rounds of arm / reference tokens per second, with its 95 % t interval on the logarithms
# (from FEWEST_ROUNDS on); faster, slower, even: rounds by the sign of the difference; excluded: rounds left out.
RATIOS: Mapping[str, str] = {
    **dict.fromkeys(("arm", "reference"), "object"),
    **dict.fromkeys(("tokens_per_second", "tokens_per_second_low", "tokens_per_second_high"), "float64"),
    **dict.fromkeys(("ratio", "low", "high"), "float64"),
    **dict.fromkeys(("rounds", "sessions", "faster", "slower", "even", "excluded"), "int64"),
    "reason": "object",
}
FEWEST_ROUNDS = 3


def ratios(measurements: pd.DataFrame, reference: str) -> pd.DataFrame:
    """One row per arm with the columns RATIOS, the reference's own ratio 1 without an interval.

    Warm-up rounds never count; a round in which either arm was preempted or hit a prefix cache is excluded and
    counted. tokens_per_second is the mean over rounds, low and high its range. Raises ValueError for an arm measured
    twice in a round and for a reference without measurements.
    """
    counted = measurements[~measurements["warm_up"]]
    if reference not in set(counted["arm"]):
        raise ValueError(f"reference '{reference}' has no measurement; arms: {', '.join(sorted(set(counted['arm'])))}")
    key = ["session", "round"]
    if counted.duplicated(["arm", *key]).any():
        raise ValueError("an arm was measured twice in one round; give every repeat a round of its own")
    sound = (counted["preemptions"] == 0) & (counted["prefix_cache_hit_rate"] == 0) & (counted["seconds"] > 0)
    speed = (counted["tokens"] / counted["seconds"]).where(sound)
    table = counted.assign(speed=speed).pivot(index=key, columns="arm", values="speed")
    order = list(dict.fromkeys(counted["arm"]))
    return pd.DataFrame([_row(arm, reference, table) for arm in order], columns=list(RATIOS)).astype(dict(RATIOS))


def _row(arm: str, reference: str, table: pd.DataFrame) -> dict[str, Any]:
    both = table[[arm, reference]].dropna() if arm != reference else table[[arm]].dropna()
    mine, theirs = (both[name].to_numpy(np.float64) for name in (arm, reference))
    logs = np.log(mine / theirs)
    low, high = (math.nan, math.nan) if arm == reference else log_interval(logs)
    few = arm != reference and len(both) < FEWEST_ROUNDS
    return {
        "arm": arm,
        "reference": reference,
        "tokens_per_second": float(mine.mean()) if len(both) else math.nan,
        "tokens_per_second_low": mine.min(initial=math.inf) if len(both) else math.nan,
        "tokens_per_second_high": mine.max(initial=-math.inf) if len(both) else math.nan,
        "ratio": float(np.exp(logs.mean())) if len(both) else math.nan,
        "low": low,
        "high": high,
        "rounds": len(both),
        "sessions": both.index.get_level_values("session").nunique(),
        **dict(zip(("faster", "slower", "even"), _signs(logs), strict=True)),
        "excluded": len(table) - len(both),
        "reason": f"too few: {len(both)} rounds, {FEWEST_ROUNDS} needed" if few else "",
    }


def log_interval(logs: npt.NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Interval of the geometric mean from logarithms of ratios [rounds]; NaN below FEWEST_ROUNDS."""
    n = logs.size
    if n < FEWEST_ROUNDS:
        return math.nan, math.nan
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * logs.std(ddof=1) / math.sqrt(n))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def _signs(logs: npt.NDArray[np.float64]) -> Iterator[int]:
    yield from (int((logs > 0).sum()), int((logs < 0).sum()), int((logs == 0).sum()))
