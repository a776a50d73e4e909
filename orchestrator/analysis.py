"""Arms and differences of a store: the one code path behind the report and the dashboard.

Unit of analysis is the problem. A row counts when it is attested and has a verdict other than error; a problem enters a
comparison when all its planned samples count in both arms. Nothing here decides: verdicts come from stats.verdict.
Columns and dtypes are declared in analysis_columns; NaN or NA where a number does not exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis_columns import ARMS, DIFFERENCES, frame
from orchestrator.errors import UserError, closest
from orchestrator.stats import multiplicity
from orchestrator.stats.arms import accuracy
from orchestrator.stats.comparison import Comparison, compare
from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.verdict import OURS, Rule, judge, withhold
from orchestrator.store.reader import CELL_COLUMNS, Reader
from orchestrator.tasks.base import Verdict

_FACTS = (
    *("cell_id", "problem_id", "sample", "status", "verdict", "n_prompt", "n_output", "events", "prompt_kept_mean"),
    *("prompt_kept_min", "cached_peak", "cached_mean", "overflow", "decode_tokens_per_second", "num_preemptions"),
)


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


EVERYTHING = Selection()
DEFAULT = Question()


def arms_table(reader: Reader, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per cell with the columns ARMS, planned cells without rows included; simulated cells never.

    accuracy       mean over problems of the share right, with its 95 % interval and rule (wilson or t)
    problems       problems with a counted answer; samples: most counted answers of a problem; graded: rows graded
    done           rows / planned rows; complete: all planned rows are there and graded; NA without a plan
    wrong .. error shares of the graded rows by verdict
    events, output_tokens, cached_mean, decode_tokens_per_second: means per row; prompt_kept_min: least of all rows
    never_evicts   share of rows in which no event happened; overflow_rows: rows whose prompt did not fit into keep
    """
    cells = _cells(reader, selection.campaign)
    rows = _counted(reader, cells)
    problems = _problems(rows)
    groups = dict(iter(rows.groupby("cell_id")))
    table = [{**cell, **_arm(cell, groups.get(cell["cell_id"]), problems)} for cell in _records(cells)]
    return selection.apply(frame(table, ARMS))


def differences_table(reader: Reader, question: Question = DEFAULT, selection: Selection = EVERYTHING) -> pd.DataFrame:
    """One row per arm and reference with the columns DIFFERENCES, difference = arm - reference; simulated cells never.

    low, high      interval that decides (interval_kind); the t and the exact percentile interval stand beside it
    provisional    an arm is not finished: only problems complete in both count so far
    excluded       problems of the task that are in one of the arms but cannot be paired
    p_holm, p_bh   sign-flip p corrected over the family; `full` is a bound, not a contender, and in no family
    long_*         the same on problems whose full-cache trace is longer than keep; others never evict and dilute

    `full` is compared at every keep of the reference. Raises UserError for a reference that no cell has.
    """
    cells = _cells(reader, selection.campaign)
    known = sorted(set(cells["policy"]))
    if question.reference not in known and known:
        raise UserError(
            f"reference '{question.reference}' has no cell here; policies: {', '.join(known)}."
            f"{closest(question.reference, known)}"
        )
    problems = _problems(_counted(reader, cells))
    by_id = {cell["cell_id"]: cell for cell in _records(cells)}
    rows = [
        {**arm, **_difference(arm, reference, problems, _full_arm(arm, by_id), question.rule)}
        for arm in by_id.values()
        for reference in _references(arm, by_id, question)
    ]
    return selection.apply(_corrected(frame(rows, DIFFERENCES), question.family))


def simulated_cells(reader: Reader) -> list[str]:
    """Labels of cells whose rows a simulated engine made; tables leave them out, and reports say so."""
    cells = reader.cells()
    return [str(label) for label in cells[cells["simulated"].astype(bool)]["cell_label"]]


def _cells(reader: Reader, campaign: str | None) -> pd.DataFrame:
    """Cells with rows or in a plan: CELL_COLUMNS, rows, graded, invalid, planned_problems, planned_samples."""
    found, plan = reader.cells(), reader.plan(campaign)
    simulated = set(found[found["simulated"].astype(bool)]["cell_id"])
    planned = pd.DataFrame([_planned(row) for row in _records(plan)], columns=list(CELL_COLUMNS))
    if campaign is not None:
        found = found[found["cell_id"].isin(plan["cell_id"])]
    found = found[~found["cell_id"].isin(simulated)]
    waiting = planned[~planned["cell_id"].isin({*found["cell_id"], *simulated})]
    cells = pd.concat([found.astype(object), waiting.astype(object)]) if len(waiting) else found.astype(object)
    sizes = plan.set_index("cell_id")[["n_problems", "samples_min"]].astype(object)
    cells = cells.join(sizes.set_axis(["planned_problems", "planned_samples"], axis="columns"), on="cell_id")
    counts = ["rows", "graded", "invalid"]
    cells[counts] = cells[counts].fillna(0).astype(int)
    order = plan["cell_id"].tolist()
    rank = {cell_id: place for place, cell_id in enumerate(order)}
    places = [rank.get(cell_id, len(rank)) for cell_id in cells["cell_id"]]
    return cells.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


def _planned(row: dict[str, Any]) -> dict[str, Any]:
    """The cell columns of a planned cell, from its identity."""
    identity = json.loads(row["identity"])
    budget, sampling = identity["budget"] or {}, identity["sampling"]
    return {
        **{name: row[name] for name in ("cell_id", "cell_label", "comparison_id")},
        "model": identity["model"]["path"],
        "model_revision": identity["model"]["revision"],
        "task": identity["task"]["name"],
        "task_revision": identity["task"]["revision"],
        "policy": identity["policy"]["name"],
        "policy_version": identity["policy"]["version"],
        "policy_params": json.dumps(identity["policy"]["params"], sort_keys=True, separators=(",", ":")),
        **{name: budget.get(name) for name in ("keep", "interval", "recent")},
        **{name: identity[name] for name in ("protection", "n_sink")},
        "overflow_mode": identity["overflow"],
        **{name: sampling[name] for name in ("temperature", "max_tokens")},
    }


def _counted(reader: Reader, cells: pd.DataFrame) -> pd.DataFrame:
    """All rows of the cells with `counts` and `right`."""
    rows = reader.rows(_FACTS, [str(cell_id) for cell_id in cells["cell_id"]])
    graded = ~rows["verdict"].isin([Verdict.ERROR, Verdict.UNGRADED]) & rows["verdict"].notna()
    rows["counts"] = graded & (rows["status"] == "ok")
    rows["right"] = rows["counts"] & (rows["verdict"] == Verdict.CORRECT)
    rows["length"] = (rows["n_prompt"] + rows["n_output"]).astype(float)
    return rows


def _problems(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Per cell: counted and right answers and mean trace length of every problem, by problem id."""
    sums = rows.groupby(["cell_id", "problem_id"]).agg(
        counts=("counts", "sum"), right=("right", "sum"), length=("length", "mean")
    )
    return {str(cell_id): part.droplevel(0) for cell_id, part in sums.groupby(level=0)}


def _arm(cell: dict[str, Any], rows: pd.DataFrame | None, problems: dict[str, pd.DataFrame]) -> dict[str, Any]:
    planned = _planned_rows(cell)
    progress = {
        "done": min(1.0, cell["rows"] / planned) if planned else None,
        "complete": _complete(cell),
        "samples": 0,
        "problems": 0,
    }
    if rows is None:
        return {**progress, "interval_rule": "none", "preemptions": 0}
    counted = problems[cell["cell_id"]].query("counts > 0")
    found = accuracy(counted["right"].to_numpy(np.int64), counted["counts"].to_numpy(np.int64))
    verdicts = rows["verdict"].dropna()
    return {
        **progress,
        "accuracy": found.mean,
        "low": found.low,
        "high": found.high,
        "interval_rule": found.rule,
        "problems": len(counted),
        "samples": int(counted["counts"].max()) if len(counted) else 0,
        **{name: float((verdicts == name).mean()) for name in ("wrong", "no_answer", "truncated", "error")},
        "output_tokens": float(rows["n_output"].mean()),
        "events": _mean(rows["events"]),
        "never_evicts": _mean(rows["events"].dropna() == 0),
        "prompt_kept_mean": _mean(rows["prompt_kept_mean"]),
        "prompt_kept_min": float(rows["prompt_kept_min"].min()),
        "cached_peak": rows["cached_peak"].max(),
        "cached_mean": _mean(rows["cached_mean"]),
        "overflow_rows": rows["overflow"].sum() if rows["overflow"].notna().any() else None,
        "decode_tokens_per_second": _mean(rows["decode_tokens_per_second"]),
        "preemptions": int(rows["num_preemptions"].sum()),
    }


def _difference(
    arm: dict[str, Any],
    reference: dict[str, Any],
    problems: dict[str, pd.DataFrame],
    full: dict[str, Any] | None,
    rule: Rule,
) -> dict[str, Any]:
    mine, theirs = (_complete_problems(cell, problems) for cell in (arm, reference))
    common = mine.index.intersection(theirs.index).sort_values()
    seen = [problems[cell["cell_id"]].index for cell in (arm, reference) if cell["cell_id"] in problems]
    result = compare(_pair(mine, theirs, common), rule)
    judgement = result.judgement
    invalid = arm["invalid"] + reference["invalid"]
    if invalid:
        judgement = withhold(judgement, f"invalid: attestation failed in {invalid} rows")
    return {
        "reference_id": reference["cell_id"],
        "reference_policy": reference["policy"],
        "reference_protection": reference["protection"],
        "at_keep": reference["keep"],
        "at_interval": reference["interval"],
        "low": judgement.interval[0],
        "high": judgement.interval[1],
        "interval_kind": judgement.kind.value,
        "verdict": judgement.verdict.value,
        "reason": judgement.reason,
        "provisional": not all(_complete(cell) in (True, None) for cell in (arm, reference)),
        "excluded": len(set().union(*seen)) - len(common),
        **_comparison_columns(result),
        **_long(mine, theirs, common, _long_problems(reference, problems, full), rule),
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


def _long_problems(
    reference: dict[str, Any], problems: dict[str, pd.DataFrame], full: dict[str, Any] | None
) -> pd.Index[str] | None:
    """Problems whose full-cache traces exceed the reference's keep on average; None without a full arm."""
    if full is None or full["cell_id"] not in problems or pd.isna(reference["keep"]):
        return None
    lengths = problems[full["cell_id"]]["length"]
    return lengths.index[lengths > reference["keep"]]


def _long(
    mine: pd.DataFrame, theirs: pd.DataFrame, common: pd.Index[str], long: pd.Index[str] | None, rule: Rule
) -> dict[str, Any]:
    if long is None:
        return {"long_problems": None}
    kept = common.intersection(long).sort_values()
    paired = _pair(mine, theirs, kept)
    low, high = judge(paired, rule).interval
    return {"long_problems": len(kept), "long_difference": paired.mean, "long_low": low, "long_high": high}


def _pair(mine: pd.DataFrame, theirs: pd.DataFrame, common: pd.Index[str]) -> Paired:
    counts = [part.loc[common, name].to_numpy(np.int64) for part in (mine, theirs) for name in ("right", "counts")]
    return pair(*counts)


def _complete_problems(cell: dict[str, Any], problems: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Problems all of whose wanted samples count. Without a plan, wanted is what the cell's fullest problem has."""
    part = problems.get(cell["cell_id"])
    if part is None:
        return pd.DataFrame({"counts": [], "right": []}, index=pd.Index([], dtype=object))
    wanted = part["counts"].max() if pd.isna(cell["planned_samples"]) else cell["planned_samples"]
    return part[part["counts"] >= max(1, wanted)]


def _references(arm: dict[str, Any], cells: dict[str, dict[str, Any]], question: Question) -> Iterator[dict[str, Any]]:
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
        candidates = [cell for cell in candidates if _budget(cell) == _budget(arm)]
    # With several arms of the reference at one budget, the plainest counts: protected, same recent rule, no parameters.
    candidates.sort(key=lambda c: (c["protection"] != wanted, c["recent"] != arm["recent"], c["policy_params"]))
    first: dict[tuple[Any, Any], dict[str, Any]] = {}
    for cell in candidates:
        first.setdefault(_budget(cell), cell)
    return (cell for cell in first.values() if cell["cell_id"] != arm["cell_id"])


def _budget(cell: dict[str, Any]) -> tuple[Any, Any]:
    return cell["keep"], cell["interval"]


def _full_arm(arm: dict[str, Any], cells: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    same = (cell for cell in cells.values() if cell["comparison_id"] == arm["comparison_id"])
    return next((cell for cell in same if cell["policy"] == "full"), None)


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


def _planned_rows(cell: dict[str, Any]) -> int | None:
    planned = (cell["planned_problems"], cell["planned_samples"])
    return None if pd.isna(planned[0]) else int(planned[0] * planned[1])


def _complete(cell: dict[str, Any]) -> bool | None:
    planned = _planned_rows(cell)
    return None if planned is None else bool(cell["rows"] >= planned and cell["graded"] >= cell["rows"])


def _mean(values: pd.Series[Any]) -> float:
    return float(values.mean()) if values.notna().any() else float("nan")


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]
