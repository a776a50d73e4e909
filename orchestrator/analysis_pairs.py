"""Which cells are compared with which, and on which problems: the rules that every comparison table shares.

Arms pair only within a comparison_id (model, task, sampling, protocol); a problem counts when all its planned samples
count in both arms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.verdict import OURS, Rule


@dataclass(frozen=True, slots=True)
class Question:
    """What every arm is compared with, and how it is decided.

    reference        policy name; its prompt-protected arm at the same model, task, sampling, keep and interval
    same_protection  compare with the reference under each arm's own protection instead
    family           comparisons that share one correction: those of one `model`, one `task`, or `all`
    """

    reference: str = "random"
    same_protection: bool = False
    family: str = "model"
    rule: Rule = field(default_factory=lambda: OURS)


def pair_problems(mine: pd.DataFrame, theirs: pd.DataFrame, common: pd.Index[str]) -> Paired:
    """Pair two frames of problems_of on the problems `common`, which both hold."""
    counts = [part.loc[common, name].to_numpy(np.int64) for part in (mine, theirs) for name in ("right", "counts")]
    return pair(*counts)


def complete_problems(cell: dict[str, Any], problems: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Problems all of whose wanted samples count. Without a plan, wanted is what the cell's fullest problem has."""
    part = problems.get(cell["cell_id"])
    if part is None:
        return pd.DataFrame({"counts": [], "right": []}, index=pd.Index([], dtype=object))
    wanted = part["counts"].max() if pd.isna(cell["planned_samples"]) else cell["planned_samples"]
    return part[part["counts"] >= max(1, wanted)]


def long_problems(
    reference: dict[str, Any], problems: dict[str, pd.DataFrame], full: dict[str, Any] | None
) -> pd.Index[str] | None:
    """Problems whose full-cache traces exceed the reference's keep on average; None without a full arm."""
    if full is None or full["cell_id"] not in problems or pd.isna(reference["keep"]):
        return None
    lengths = problems[full["cell_id"]]["length"]
    return lengths.index[lengths > reference["keep"]]


def references(arm: dict[str, Any], cells: dict[str, dict[str, Any]], question: Question) -> Iterator[dict[str, Any]]:
    """The cells an arm is compared with: one, or for `full` one per keep and interval; never itself."""
    candidates = [
        cell
        for cell in cells.values()
        if cell["policy"] == question.reference and cell["comparison_id"] == arm["comparison_id"]
    ]
    wanted = arm["protection"] if question.same_protection and arm["policy"] != "full" else "prompt"
    if question.same_protection:
        candidates = [cell for cell in candidates if cell["protection"] == wanted]
    if arm["policy"] != "full":
        candidates = [cell for cell in candidates if budget(cell) == budget(arm)]
    # With several arms of the reference at one budget, the plainest counts: protected, same recent rule, no parameters.
    candidates.sort(key=lambda c: (c["protection"] != wanted, c["recent"] != arm["recent"], c["policy_params"]))
    first: dict[tuple[Any, Any], dict[str, Any]] = {}
    for cell in candidates:
        first.setdefault(budget(cell), cell)
    return (cell for cell in first.values() if cell["cell_id"] != arm["cell_id"])


def budget(cell: dict[str, Any]) -> tuple[Any, Any]:
    """What arms of one comparison share: keep and interval."""
    return cell["keep"], cell["interval"]


def full_arm(arm: dict[str, Any], cells: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The full-cache cell of an arm's model, task and sampling."""
    same = (cell for cell in cells.values() if cell["comparison_id"] == arm["comparison_id"])
    return next((cell for cell in same if cell["policy"] == "full"), None)
