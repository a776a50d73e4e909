"""A published number's counterpart in a store. Each estimator gives the columns of REPLICATION that it can fill."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.replication.arms import Wanted
from orchestrator.replication.names import TASKS
from orchestrator.replication.run import Cell, Run
from orchestrator.stats import prediction, survival
from orchestrator.stats.prediction import Prediction, Published

# Start of the age bin 1,024 to 2,047.
_AGE = 1024

Row = Mapping[str, Any]
Columns = dict[str, Any]


def one_arm(row: Row, arm: Wanted, cell: Cell, run: Run) -> Columns:
    """Accuracy, length or spread over runs of one arm; no columns where the cell has no complete problem."""
    problems = run.problems(cell)
    if problems.empty:
        return {}
    samples = int(problems["counts"].max())
    size = {"problems": len(problems), "samples": samples, "cell_id": cell["cell_id"]}
    return {**size, **_columns(_ONE_ARM[row["metric"]](row, arm, cell, run))}


def two_arms(row: Row, arms: tuple[Wanted, Wanted], cells: tuple[Cell, Cell], run: Run, sign: int) -> Columns:
    """A difference in points, arm - other, times sign; no columns where no problem is complete in both."""
    paired = run.paired(cells[0], cells[1]) if sign > 0 else run.paired(cells[1], cells[0])
    if not paired.n:
        return {}
    wins, losses, ties = paired.signs
    found = prediction.of_difference(paired, _published(row, arms[0], scale=0.01))
    return {
        "problems": paired.n,
        "samples": int(paired.samples_a.max()),
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "cell_id": cells[0]["cell_id"],
        "reference_id": cells[1]["cell_id"],
        **_columns(found, scale=100.0),
    }


def average(row: Row, arms: Sequence[Wanted], cells: Sequence[Cell], run: Run) -> Columns:
    """Mean over tasks of a mean over problems; tasks are independent, so their noises add up in squares."""
    if any(run.problems(cell).empty for cell in cells):
        return {}
    exact = {**row, "rounding": 0.0}
    parts = [_ONE_ARM[row["metric"]](exact, arm, cell, run) for arm, cell in zip(arms, cells, strict=True)]
    estimate = float(np.mean([part.estimate for part in parts]))
    own, wide = (
        math.hypot(*(getattr(part, name)[1] - part.estimate for part in parts)) / len(parts)
        for name in ("interval", "predicted")
    )
    wide += row["rounding"] or 0.0
    found = Prediction(estimate, (estimate - own, estimate + own), (estimate - wide, estimate + wide))
    problems = [run.problems(cell) for cell in cells]
    size = {"problems": sum(map(len, problems)), "samples": max(int(part["counts"].max()) for part in problems)}
    return {**size, "cell_id": cells[0]["cell_id"], **_columns(found)}


def surviving(row: Row, arm: Wanted, cell: Cell, run: Run) -> Columns:
    """Share of tokens of age 1,024 to 2,047 that a head still holds; their sample of traces counts as noisy as ours."""
    table = survival.held(run.traces(cell))
    table = table[table["age_from"] == _AGE]
    if table.empty:
        return {}
    found = table.iloc[0]
    size = {"problems": found["problems"], "cell_id": cell["cell_id"], "estimate": found["held"]}
    low, high = found["low"] - found["held"], found["high"] - found["held"]
    wide = {
        "predicted_low": found["held"] + low * math.sqrt(2) - row["rounding"],
        "predicted_high": found["held"] + high * math.sqrt(2) + row["rounding"],
    }
    return {**size, "low": found["low"], "high": found["high"], **wide}


def _accuracy(row: Row, arm: Wanted, cell: Cell, run: Run) -> Prediction:
    problems = run.problems(cell)
    right, counts = (problems[name].to_numpy(np.int64) for name in ("right", "counts"))
    return prediction.of_accuracy(right, counts, _published(row, arm))


def _length(row: Row, arm: Wanted, cell: Cell, run: Run, unit: float) -> Prediction:
    rows = run.rows(cell)
    rows = rows[rows["status"] == "ok"]
    length = rows["n_output"].astype(float) / unit
    parts = pd.DataFrame({"sum": length, "square": length**2, "count": 1}).groupby(rows["problem_id"]).sum()
    sums, squares = (np.asarray(parts[name], dtype=np.float64) for name in ("sum", "square"))
    return prediction.of_mean(sums, squares, parts["count"].to_numpy(np.int64), _published(row, arm))


def _spread(row: Row, arm: Wanted, cell: Cell, run: Run) -> Prediction:
    return prediction.of_spread(100 * run.run_accuracies(cell), TASKS[arm.task].samples, row["rounding"])


_ONE_ARM: Mapping[str, Callable[[Row, Wanted, Cell, Run], Prediction]] = {
    "accuracy": _accuracy,
    "pass@1": _accuracy,
    "mean_generated_ktokens": lambda row, arm, cell, run: _length(row, arm, cell, run, 1000.0),
    "mean_generated_tokens": lambda row, arm, cell, run: _length(row, arm, cell, run, 1.0),
    "run_sd_points": _spread,
}


def _published(row: Row, arm: Wanted, scale: float = 1.0) -> Published:
    task = TASKS[arm.task]
    return Published(task.problems, task.samples, (row["rounding"] or 0.0) * scale)


def _columns(found: Prediction, scale: float = 1.0) -> Columns:
    found = _scaled(found, scale)
    return {
        "estimate": found.estimate,
        "low": found.interval[0],
        "high": found.interval[1],
        "predicted_low": found.predicted[0],
        "predicted_high": found.predicted[1],
    }


def _scaled(found: Prediction, scale: float) -> Prediction:
    (low, high), (first, last) = found.interval, found.predicted
    return Prediction(found.estimate * scale, (low * scale, high * scale), (first * scale, last * scale))
