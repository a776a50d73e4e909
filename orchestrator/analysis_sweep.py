"""Curves over keep with paired differences at every point (SWEEP), and what common seeds buy (SEEDS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis import DEFAULT, arms_table, differences_table
from orchestrator.analysis_columns import KEYS, SEEDS, SWEEP, frame
from orchestrator.analysis_pairs import Answers, Cell, Pair, Question, pairs
from orchestrator.analysis_rows import records
from orchestrator.stats.seeds import common_seeds
from orchestrator.store.reader import Reader

Row = Mapping[str, Any]


def sweep(arms: pd.DataFrame, against: pd.DataFrame, to_full: pd.DataFrame) -> pd.DataFrame:
    """Join tables of orchestrator.analysis into curves with the columns SWEEP, smallest keep first.

    arms     arms_table; the full cache's mean trace length gives what keep compresses
    against  differences_table with the reference at each keep; the reference's own points have no difference
    to_full  differences_table with reference `full`
    """
    mine = {row["cell_id"]: row for row in records(against) if row["policy"] != "full"}
    bounds = {row["cell_id"]: row for row in records(to_full)}
    whole = {row["comparison_id"]: row for row in records(arms) if row["policy"] == "full"}
    points = [arm for arm in records(arms) if arm["keep"] is not None]
    points.sort(key=lambda arm: (arm["comparison_id"], arm["policy"], str(arm["protection"]), arm["keep"]))
    return frame(
        [
            _point(arm, mine.get(arm["cell_id"], {}), bounds.get(arm["cell_id"], {}), whole.get(arm["comparison_id"]))
            for arm in points
        ],
        SWEEP,
    )


def sweep_table(
    reader: Reader, question: Question = DEFAULT, campaign: str | None = None, answers: Answers | None = None
) -> pd.DataFrame:
    """sweep of a store or of one of its campaigns; without a full cache the columns that need it are missing."""
    answers = answers or Answers(reader, campaign)
    arms = arms_table(reader, answers=answers)
    if arms.empty:
        return frame([], SWEEP)
    against = differences_table(reader, question, answers=answers)
    bounded = replace(question, reference="full")
    full = (arms["policy"] == "full").any()
    to_full = differences_table(reader, bounded, answers=answers) if full else pd.DataFrame()
    return sweep(arms, against, to_full)


def seeds_table(
    reader: Reader, question: Question = DEFAULT, campaign: str | None = None, answers: Answers | None = None
) -> pd.DataFrame:
    """What common seeds buy in each comparison, on problems with all samples in both arms; columns SEEDS.

    Arms share the sampling seed of each (problem, sample), and their text until the first eviction.
    """
    answers = answers or Answers(reader, campaign)
    found = [pair for pair in pairs(answers, replace(question, looks=())) if pair.arm["policy"] != "full"]
    return frame([_seeds(pair, answers) for pair in found], SEEDS)


def _point(arm: Row, mine: Row, bound: Row, full: Row | None) -> dict[str, Any]:
    length = full["prompt_tokens"] + full["output_tokens"] if full and full["output_tokens"] else None
    return {
        **{name: arm[name] for name in (*KEYS, "accuracy", "low", "high", "problems", "samples")},
        "compression": length / arm["keep"] if length else None,
        "provisional": arm["complete"] is False or bool(mine.get("provisional")),
        "difference": mine.get("difference"),
        "difference_low": mine.get("low"),
        "difference_high": mine.get("high"),
        **{name: mine.get(name) for name in ("verdict", "wins", "losses", "ties")},
        "full_difference": bound.get("difference"),
        "full_low": bound.get("low"),
        "full_high": bound.get("high"),
    }


def _seeds(pair: Pair, answers: Answers) -> dict[str, Any]:
    paired = pair.paired
    wins, losses, ties = paired.signs
    a, b = (_matrix(cell, pair, answers) for cell in (pair.arm, pair.reference))
    samples = a.columns.intersection(b.columns)
    both = (a[samples].notna() & b[samples].notna()).all(axis="columns")
    found = common_seeds(a.loc[both, samples].to_numpy(np.float64), b.loc[both, samples].to_numpy(np.float64))
    return {
        **{name: pair.arm[name] for name in KEYS},
        "reference_id": pair.reference["cell_id"],
        "reference_policy": pair.reference["policy"],
        "problems": found.problems,
        "samples": found.samples,
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "difference": paired.mean,
        "seed_correlation": found.correlation,
        "variance_ratio": found.variance_ratio,
        "variance_low": found.interval[0],
        "variance_high": found.interval[1],
        "samples_saved": found.samples_saved,
    }


def _matrix(cell: Cell, pair: Pair, answers: Answers) -> pd.DataFrame:
    """Right answers of the common problems (rows) by sample index (columns), missing where none counts."""
    rows = answers.rows(cell)
    rows = rows[rows["counts"]]
    table = rows.assign(right=rows["right"].astype(float)).pivot(index="problem_id", columns="sample", values="right")
    return table.reindex(pair.common)
