"""Wins and losses against random as the publication counts them: "31 worse, 1 better of 60", from any complete grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from orchestrator.analysis import Question, differences_table
from orchestrator.analysis_columns import frame
from orchestrator.replication import costs
from orchestrator.replication.arms import COUNTED, GRID_MODELS, Wanted, grid
from orchestrator.replication.columns import COUNTS, Status
from orchestrator.replication.names import REFERENCE
from orchestrator.replication.run import Run
from orchestrator.stats.bootstrap import distribution
from orchestrator.stats.paired import Paired
from orchestrator.stats.prediction import count_interval
from orchestrator.stats.verdict import IntervalKind, excludes_zero, interval
from orchestrator.store.reader import Reader

Columns = dict[str, Any]
_QUANTILE = 1.959963984540054
PUBLISHED_RULE = "published: percentile interval excludes 0"
OUR_RULE = "ours: verdict"


def found(row: Mapping[str, Any], run: Run) -> Columns:
    """Counterpart of a published count: estimate, and the interval in which a repetition's count would fall."""
    arms = grid(GRID_MODELS)
    cells = {arm: run.arm(arm) for arm in arms}
    missing = [arm for arm, cell in cells.items() if cell is None or run.unfinished(cell)]
    if missing:
        return costs.not_run(missing)
    pairs = [_paired(arm, arms, run) for arm in arms if arm.method != REFERENCE]
    behind = COUNTED[row["metric"]] == "behind"
    chances = [_chance(paired, -1 if behind else 1) for paired in pairs]
    ahead_now, behind_now = (sum(_significant(paired, sign) for paired in pairs) for sign in (1, -1))
    estimate = behind_now if behind else ahead_now
    low, high = count_interval(np.array(chances))
    inside = bool(low <= row["value"] <= high)
    return {
        "estimate": float(estimate),
        "predicted_low": low,
        "predicted_high": high,
        "wins": ahead_now,
        "losses": behind_now,
        "ties": len(pairs) - ahead_now - behind_now,
        "inside": inside,
        "status": (Status.CONSISTENT if inside else Status.DEVIATES).value,
    }


def counts_table(reader: Reader, reference: str = "random") -> pd.DataFrame:
    """Comparisons behind and ahead of the protected reference, per model and in all, by both rules: columns COUNTS.

    Every arm of another policy counts at its own keep and protection; `full` is a bound and does not. A model with an
    unfinished arm has its numbers among `incomplete` and gives no count.
    """
    if reference not in set(reader.cells()["policy"]):
        return frame([], COUNTS)
    table = differences_table(reader, Question(reference=reference, family="all"))
    table = table[~table["policy"].isin(["full", reference])]
    parts = [(str(model), part) for model, part in table.groupby("model", sort=False)]
    if len(parts) > 1:
        parts.append(("all models", table))
    return frame([row for model, part in parts for row in _counted(model, part)], COUNTS)


def _counted(model: str, part: pd.DataFrame) -> Iterator[Columns]:
    done = part[~part["provisional"].astype(bool)]
    names = {
        "model": model,
        "tasks": ", ".join(dict.fromkeys(part["task"])),
        "contenders": ", ".join(dict.fromkeys(part["policy"])),
        "comparisons": len(part),
        "incomplete": len(part) - len(done),
    }
    low, high = done["percentile_low"], done["percentile_high"]
    rules = {
        PUBLISHED_RULE: ((high < 0).sum(), (low > 0).sum()),
        OUR_RULE: ((done["verdict"] == "worse").sum(), (done["verdict"] == "better").sum()),
    }
    for rule, (behind, ahead) in rules.items():
        complete = len(done) == len(part)
        yield {
            **names,
            "rule": rule,
            "behind": int(behind) if complete else None,
            "ahead": int(ahead) if complete else None,
            "open": len(done) - int(behind) - int(ahead) if complete else None,
        }


def _paired(arm: Wanted, arms: Sequence[Wanted], run: Run) -> Paired:
    reference = next(a for a in arms if (a.model, a.task, a.method) == (arm.model, arm.task, REFERENCE))
    mine, theirs = run.arm(arm), run.arm(reference)
    assert mine is not None, arm
    assert theirs is not None, reference
    return run.paired(mine, theirs)


def _significant(paired: Paired, sign: int) -> bool:
    """Whether the published rule calls the difference significant in this direction."""
    if distribution(paired) is None:
        return False
    found = interval(paired, IntervalKind.PERCENTILE, 0.95)
    return excludes_zero(found) and (found[0] > 0) == (sign > 0)


def _chance(paired: Paired, sign: int) -> float:
    """Chance that a repetition on the same problems would find the difference significant in this direction."""
    if paired.n < 2 or paired.se == 0:
        return float(_significant(paired, sign))
    within = paired.within if paired.within == paired.within else paired.sd**2
    noise = float(np.sqrt(2 * within / paired.n)) or 1e-12
    return float(stats.norm.cdf((sign * paired.mean - _QUANTILE * paired.se) / noise))
