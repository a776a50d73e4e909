"""Differences pooled over the tasks of a model, the models on a task, or everything: POOLED."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pandas as pd

from orchestrator.analysis_columns import POOLED, frame
from orchestrator.analysis_pairs import Answers, Pair, Question, long_problems, pairs
from orchestrator.analysis_rows import complete
from orchestrator.stats import power
from orchestrator.stats.pooled import Pooled, Weights, pooled
from orchestrator.stats.verdict import IntervalKind, Rule, decide, withhold
from orchestrator.store.reader import Reader

# Points of the usual margin, where the question names none.
MARGIN = 0.02
ALL = "all"


@dataclass(frozen=True, slots=True)
class _Scope:
    name: str
    models: bool
    tasks: bool


_SCOPES = (
    _Scope("tasks of one model", models=False, tasks=True),
    _Scope("models on one task", models=True, tasks=False),
    _Scope("all", models=True, tasks=True),
)


def pooled_table(
    reader: Reader, question: Question, campaign: str | None = None, answers: Answers | None = None
) -> pd.DataFrame:
    """One row per policy, protection, scope and weights that pool several cells; columns POOLED.

    Cells of one (model, task) are pooled at one budget: at each common keep and interval, or, where each task has its
    own keep, at the one it has. `full` is not pooled. Looks do not apply: pooled numbers are those of all samples.
    """
    answers = answers or Answers(reader, campaign)
    found = pairs(answers, replace(question, looks=()))
    found = [pair for pair in found if pair.arm["policy"] != "full" and len(pair.common)]
    return frame([row for scope in _SCOPES for row in _rows(scope, found, answers, question.rule)], POOLED)


def _rows(scope: _Scope, found: Sequence[Pair], answers: Answers, rule: Rule) -> Iterator[dict[str, Any]]:
    budgets = _several_budgets(found)

    def key(pair: Pair) -> tuple[str, ...]:
        arm = pair.arm
        place = (ALL if scope.models else arm["model"], ALL if scope.tasks else arm["task"])
        size = (str(arm["keep"]), str(arm["interval"])) if budgets else ("", "")
        return (*map(str, place), str(arm["policy"]), str(arm["policy_params"]), str(arm["protection"]), *size)

    for _, group in groupby(sorted(found, key=key), key=key):
        part = list(group)
        places = {(pair.arm["model"], pair.arm["task"]) for pair in part}
        # Several samplings of one model and task would count its problems twice.
        if len(places) < 2 or len(places) < len(part) or not _spans(scope, places):
            continue
        yield from (_row(scope, part, answers, rule, weights) for weights in Weights)


def _spans(scope: _Scope, places: set[tuple[Any, Any]]) -> bool:
    """Whether a pool is not the same as that of a smaller scope."""
    models, tasks = ({place[axis] for place in places} for axis in (0, 1))
    return (len(models) > 1) == scope.models and (len(tasks) > 1) == scope.tasks


def _several_budgets(found: Sequence[Pair]) -> bool:
    """Whether any policy has several budgets on one model and task."""
    seen: dict[tuple[Any, ...], set[tuple[Any, Any]]] = {}
    for pair in found:
        arm = pair.arm
        place = (arm["comparison_id"], arm["policy"], arm["policy_params"], arm["protection"])
        seen.setdefault(place, set()).add((arm["keep"], arm["interval"]))
    return any(len(budgets) > 1 for budgets in seen.values())


def _row(scope: _Scope, part: Sequence[Pair], answers: Answers, rule: Rule, weights: Weights) -> dict[str, Any]:
    whole = pooled(_differences(part, None), weights)
    longs = [long_problems(pair.reference, answers.problems(), pair.full) for pair in part]
    known = [long for long in longs if long is not None]
    long = pooled(_differences(part, known), weights) if len(known) == len(part) else None
    judgement = decide(whole.interval, IntervalKind.T, whole.problems, whole.wins + whole.losses, rule)
    invalid = sum(pair.arm["invalid"] + pair.reference["invalid"] for pair in part)
    if invalid:
        judgement = withhold(judgement, f"invalid: attestation failed in {invalid} rows")
    arm, margin = part[0].arm, MARGIN if rule.margin is None else rule.margin
    return {
        "scope": scope.name,
        "model": ALL if scope.models else arm["model"],
        "task": ALL if scope.tasks else arm["task"],
        **{name: arm[name] for name in ("policy", "policy_params", "protection")},
        "reference_policy": part[0].reference["policy"],
        "weights": weights.value,
        "at_keep": _same(pair.reference["keep"] for pair in part),
        "at_interval": _same(pair.reference["interval"] for pair in part),
        **{name: getattr(whole, name) for name in ("cells", "problems", "wins", "losses", "ties", "difference")},
        "low": judgement.interval[0],
        "high": judgement.interval[1],
        "verdict": judgement.verdict.value,
        "reason": judgement.reason,
        "provisional": any(complete(cell) is False for pair in part for cell in (pair.arm, pair.reference)),
        "detectable": _detectable(whole, rule.alpha),
        "margin": margin,
        "equivalence_power": power.equivalence_power(whole.se, margin, whole.freedom, rule.alpha),
        "never_evicts": _never_evicts(part, answers),
        "long_problems": None if long is None else long.problems,
        "long_difference": None if long is None else long.difference,
        **dict(zip(("long_low", "long_high"), (None, None) if long is None else long.interval(), strict=True)),
    }


def _differences(part: Sequence[Pair], long: Sequence[pd.Index[str]] | None) -> pd.DataFrame:
    """Differences by problem, with the columns stats.pooled.POOL_INPUT; only the problems in `long`, where given."""
    tables = [
        pd.DataFrame(
            {
                "task": pair.arm["task"],
                "model": pair.arm["model"],
                "problem_id": pair.common,
                "difference": pair.paired.d,
            }
        )
        for pair in part
    ]
    if long is not None:
        tables = [table[table["problem_id"].isin(kept)] for table, kept in zip(tables, long, strict=True)]
    return pd.concat(tables, ignore_index=True)


def _detectable(whole: Pooled, alpha: float) -> float:
    return power.detectable_from_se(whole.se, whole.freedom, alpha) if whole.se else float("nan")


def _never_evicts(part: Sequence[Pair], answers: Answers) -> float:
    ids = [str(pair.arm["cell_id"]) for pair in part]
    found = [answers.means[cell_id] for cell_id in ids if cell_id in answers.means]
    traced = sum(row["traced"] for row in found)
    return sum(row["never_evicts"] * row["traced"] for row in found if row["traced"]) / traced if traced else math.nan


def _same(values: Iterator[Any]) -> Any:
    found = set(values)
    return found.pop() if len(found) == 1 else None
