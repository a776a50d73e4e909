"""Score or protection: each policy with and without the prompt protected, paired by problem (PROTECTION)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis_columns import PROTECTION, frame
from orchestrator.analysis_pairs import Answers, Cell, pair_problems, shared_problems
from orchestrator.analysis_rows import complete
from orchestrator.stats.intervals import t_interval
from orchestrator.stats.paired import Paired
from orchestrator.stats.verdict import OURS, Rule, judge, withhold
from orchestrator.store.reader import Reader

Numbers = Mapping[str, Any]


def protection_table(
    reader: Reader,
    reference: str = "random",
    rule: Rule = OURS,
    campaign: str | None = None,
    answers: Answers | None = None,
) -> pd.DataFrame:
    """One row per policy and budget that has a prompt-protected arm and another; columns PROTECTION.

    change   protected - bare on the problems complete in both, with the interval that decides
    beyond   change - the reference's own change on the same problems (t interval): what protection does to this policy
             beyond what it does to the reference; missing for the reference itself
    """
    answers = answers or Answers(reader, campaign)
    rows = [
        _row(bare, protected, answers, reference, rule) for bare, protected in _couples(list(answers.cells.values()))
    ]
    return frame(rows, PROTECTION)


def _couples(cells: list[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Bare and protected arms that differ in nothing else."""
    protected = {_key(cell): cell for cell in cells if cell["protection"] == "prompt"}
    for cell in cells:
        if cell["protection"] not in (None, "prompt") and _key(cell) in protected:
            yield cell, protected[_key(cell)]


def _key(cell: Cell) -> tuple[Any, ...]:
    return tuple(cell[name] for name in ("comparison_id", "policy", "policy_params", "keep", "interval", "recent"))


def _row(bare: Cell, protected: Cell, answers: Answers, reference: str, rule: Rule) -> dict[str, Any]:
    paired, common = _paired(protected, bare, answers)
    judgement = judge(paired, rule)
    invalid = bare["invalid"] + protected["invalid"]
    if invalid:
        judgement = withhold(judgement, f"invalid: attestation failed in {invalid} rows")
    wins, losses, ties = paired.signs
    accuracies = [
        float(np.mean(correct / samples)) if paired.n else None
        for correct, samples in (
            (paired.correct_a, paired.samples_a),
            (paired.correct_b, paired.samples_b),
        )
    ]
    return {
        **{name: protected[name] for name in ("model", "task", "comparison_id", "policy", "policy_params")},
        "bare_protection": bare["protection"],
        "cell_id": protected["cell_id"],
        "bare_id": bare["cell_id"],
        **{name: protected[name] for name in ("keep", "interval")},
        "accuracy": accuracies[0],
        "bare_accuracy": accuracies[1],
        "change": paired.mean,
        "low": judgement.interval[0],
        "high": judgement.interval[1],
        "interval_kind": judgement.kind.value,
        "verdict": judgement.verdict.value,
        "reason": judgement.reason,
        "provisional": any(complete(cell) is False for cell in (bare, protected)),
        "problems": paired.n,
        "wins": wins,
        "losses": losses,
        "ties": ties,
        "prompt_kept": _prompt_kept(protected, answers),
        "bare_prompt_kept": _prompt_kept(bare, answers),
        **_beyond(protected, bare, paired, common, answers, reference),
    }


def _beyond(
    protected: Cell, bare: Cell, paired: Paired, common: pd.Index[str], answers: Answers, reference: str
) -> Numbers:
    """Difference of the two changes, problem by problem."""
    if protected["policy"] == reference:
        return {}
    same = ("comparison_id", "keep", "interval")
    theirs = [
        (low, high)
        for low, high in _couples([cell for cell in answers.cells.values() if cell["policy"] == reference])
        if all(high[name] == protected[name] for name in same) and low["protection"] == bare["protection"]
    ]
    if not theirs:
        return {}
    other, seen = _paired(theirs[0][1], theirs[0][0], answers)
    shared = common.intersection(seen)
    mine = pd.Series(paired.d, common).loc[shared]
    d = np.asarray(mine - pd.Series(other.d, seen).loc[shared], dtype=np.float64)
    low, high = t_interval(d)
    return {
        "beyond_problems": len(shared),
        "beyond": float(d.mean()) if len(shared) else None,
        "beyond_low": low,
        "beyond_high": high,
    }


def _paired(mine: Cell, theirs: Cell, answers: Answers) -> tuple[Paired, pd.Index[str]]:
    a, b = (answers.complete(cell) for cell in (mine, theirs))
    shared = shared_problems(a, b)
    return pair_problems(a, b, shared), shared


def _prompt_kept(cell: Cell, answers: Answers) -> float | None:
    means = answers.means.get(str(cell["cell_id"]))
    return means["prompt_kept_mean"] if means else None
