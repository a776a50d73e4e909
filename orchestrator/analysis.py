"""Arms and differences of a store: the one code path behind the report and the dashboard.

Unit of analysis is the problem. A row counts when it is attested and has a verdict other than error; a problem enters a
comparison when all its planned samples count in both arms. Nothing here decides: verdicts come from stats.verdict.
Columns and dtypes are declared in analysis_columns; NaN or NA where a number does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis_columns import ARMS, DIFFERENCES, KEYS, frame
from orchestrator.analysis_pairs import Answers, Pair, Question, pair_problems, pairs
from orchestrator.analysis_rows import complete, planned_rows
from orchestrator.errors import UserError, closest
from orchestrator.stats import multiplicity
from orchestrator.stats.arms import accuracy
from orchestrator.stats.comparison import Comparison, compare
from orchestrator.stats.paired import Paired
from orchestrator.stats.verdict import judge, withhold
from orchestrator.store.reader import Reader

__all__ = ["DEFAULT", "EVERYTHING", "Question", "Selection", "arms_table", "differences_table", "simulated_cells"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cells a view shows; an empty tuple means all. A view never changes a family of comparisons."""

    campaign: str | None = None
    models: Sequence[str] = ()
    tasks: Sequence[str] = ()
    policies: Sequence[str] = ()

    def apply(self, table: pd.DataFrame) -> pd.DataFrame:
        """Rows of a table with the columns KEYS that the view shows. Raises UserError for a name without cells."""
        for column, wanted in (("model", self.models), ("task", self.tasks), ("policy", self.policies)):
            known = sorted(set(table[column]))
            for name in wanted:
                if name not in known and not table.empty:
                    raise UserError(f"no cell has {column} '{name}'; here: {', '.join(known)}.{closest(name, known)}")
            if wanted:
                table = table[table[column].isin(wanted)]
        return table.reset_index(drop=True)

    def apply_pool(self, table: pd.DataFrame) -> pd.DataFrame:
        """Rows of a pooled table that the view shows; a pool over all models or tasks stays."""
        for column, wanted in (("model", self.models), ("task", self.tasks), ("policy", self.policies)):
            if wanted:
                table = table[table[column].isin([*wanted, "all"])]
        return table.reset_index(drop=True)


EVERYTHING = Selection()
DEFAULT = Question()


def arms_table(reader: Reader, selection: Selection = EVERYTHING, answers: Answers | None = None) -> pd.DataFrame:
    """One row per cell with the columns ARMS, planned cells without rows included; simulated cells never.

    accuracy       mean over problems of the share right, with its 95 % interval and rule (wilson or t)
    problems       problems with a counted answer; samples: most counted answers of a problem; graded: rows graded
    done           rows / planned rows; complete: all planned rows are there and graded; NA without a plan
    wrong .. error shares of the graded rows by verdict
    lenient        accuracy if answers inside unfinished thoughts counted; missing where a row's grade does not say
    prompt_tokens .. cached_mean, decode_tokens_per_second: means per row; prompt_kept_min: least of all rows
    never_evicts   share of rows in which no event happened; overflow_rows: rows whose prompt did not fit into keep
    """
    answers = answers or Answers(reader, selection.campaign)
    table = [
        {**cell, **_arm(cell, answers.means.get(cell_id), answers.problems())}
        for cell_id, cell in answers.cells.items()
    ]
    return selection.apply(frame(table, ARMS))


def differences_table(
    reader: Reader,
    question: Question = DEFAULT,
    selection: Selection = EVERYTHING,
    answers: Answers | None = None,
) -> pd.DataFrame:
    """One row per arm and reference with the columns DIFFERENCES, difference = arm - reference; simulated cells never.

    low, high      interval that decides (interval_kind); the t and the exact percentile interval stand beside it
    provisional    an arm is not finished: only problems complete in both count so far
    excluded       problems of the task that are in one of the arms but cannot be paired
    p_holm, p_bh   sign-flip p corrected over the family; `full` is a bound, not a contender, and in no family
    long_*         the same on problems whose full-cache trace is longer than keep; others never evict and dilute
    look, looks    which of the declared looks this is; alpha: two-sided level, the intervals' is 1 - alpha

    `full` is compared at every keep of the reference, and as the reference with every arm. Raises UserError for a
    reference that no cell has.
    """
    answers = answers or Answers(reader, selection.campaign)
    rows = [
        {**found.arm, **answers.remembered(("difference", *found.key), partial(_difference, found, answers))}
        for found in pairs(answers, question)
    ]
    return selection.apply(_corrected(frame(rows, DIFFERENCES), question.family))


def simulated_cells(reader: Reader) -> list[str]:
    """Labels of cells whose rows a simulated engine made; tables leave them out, and reports say so."""
    cells = reader.cells()
    return [str(label) for label in cells[cells["simulated"].astype(bool)]["cell_label"]]


def _arm(cell: dict[str, Any], means: Mapping[str, Any] | None, problems: dict[str, pd.DataFrame]) -> dict[str, Any]:
    planned = planned_rows(cell)
    progress = {
        "done": min(1.0, cell["rows"] / planned) if planned else None,
        "complete": complete(cell),
        "samples": 0,
        "problems": 0,
    }
    if means is None:
        return {**progress, "interval_rule": "none", "preemptions": 0}
    answered = problems[cell["cell_id"]]
    answered = answered[answered["counts"] > 0]
    found = accuracy(answered["right"].to_numpy(np.int64), answered["counts"].to_numpy(np.int64))
    return {
        **progress,
        "accuracy": found.mean,
        "low": found.low,
        "high": found.high,
        "interval_rule": found.rule,
        "problems": len(answered),
        "samples": int(answered["counts"].max()) if len(answered) else 0,
        **{name: value for name, value in means.items() if name in ARMS and name not in KEYS},
    }


def _difference(found: Pair, answers: Answers) -> dict[str, Any]:
    arm, reference, paired = found.arm, found.reference, found.paired
    result = compare(paired, found.rule)
    judgement = result.judgement
    invalid = arm["invalid"] + reference["invalid"]
    if invalid:
        judgement = withhold(judgement, f"invalid: attestation failed in {invalid} rows")
    elif found.waiting:
        judgement = withhold(judgement, f"before the first look, at {found.looks[0].samples} samples")
    unfinished = not all(complete(cell) in (True, None) for cell in (arm, reference))
    return {
        "reference_id": reference["cell_id"],
        "reference_policy": reference["policy"],
        "reference_protection": reference["protection"],
        "at_keep": arm["keep"] if reference["keep"] is None else reference["keep"],
        "at_interval": arm["interval"] if reference["interval"] is None else reference["interval"],
        "low": judgement.interval[0],
        "high": judgement.interval[1],
        "interval_kind": judgement.kind.value,
        "verdict": judgement.verdict.value,
        "reason": judgement.reason,
        "provisional": unfinished and found.look is None,
        "excluded": found.seen - len(found.common),
        "look": found.look.number if found.look else None,
        "looks": len(found.looks) or None,
        "alpha": found.rule.alpha,
        **_comparison_columns(result),
        **_long(found, paired, answers.long(reference, found.full)),
    }


def _comparison_columns(result: Comparison) -> dict[str, Any]:
    return {
        "problems": result.n_problems,
        "samples": result.samples_a,
        "reference_samples": result.samples_b,
        **{name: getattr(result, name) for name in ("difference", "wins", "losses", "ties", "p_sign", "p_signflip")},
        **{name: getattr(result, name) for name in ("detectable", "problems_needed", "sample_factor")},
        "t_low": result.t[0],
        "t_high": result.t[1],
        "percentile_low": result.percentile[0],
        "percentile_high": result.percentile[1],
    }


def _long(found: Pair, paired: Paired, long: pd.Index[str] | None) -> dict[str, Any]:
    if long is None:
        return {"long_problems": None}
    inside = long.get_indexer(found.common) >= 0
    part = paired if inside.all() else pair_problems(found.mine, found.theirs, found.common[inside])
    low, high = judge(part, found.rule).interval
    return {"long_problems": part.n, "long_difference": part.mean, "long_low": low, "long_high": high}


def _corrected(table: pd.DataFrame, family: str) -> pd.DataFrame:
    """Fill p_holm, p_bh and family_size over the contenders of each family."""
    contenders = table[table["policy"] != "full"]
    keys = contenders["model"] + "\0" + contenders["task"] if family == "task" else contenders["model"]
    for _, part in contenders.groupby(pd.Series("", contenders.index) if family == "all" else keys):
        p = part["p_signflip"].to_numpy(np.float64)
        table.loc[part.index, "p_holm"] = multiplicity.holm(p)
        table.loc[part.index, "p_bh"] = multiplicity.benjamini_hochberg(p)
        table.loc[part.index, "family_size"] = int((~np.isnan(p)).sum())
    return table
