"""What a report says: accuracy, paired differences with verdicts, what eviction did.

It says what the tables of orchestrator.analysis say and nothing beyond: no ranking, no conclusion.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator import figures, report_evidence, report_notes
from orchestrator.analysis import Question, Selection, arms_table, differences_table, simulated_cells
from orchestrator.analysis_pairs import Answers
from orchestrator.analysis_pooled import pooled_table
from orchestrator.analysis_protection import protection_table
from orchestrator.analysis_stopping import stopping_table
from orchestrator.analysis_sweep import seeds_table
from orchestrator.report_sheet import Sheet, arm_columns, arm_names, verdict
from orchestrator.store.paths import NO_JUDGE
from orchestrator.store.reader import Reader

_INTERVALS = {"t": "t interval", "percentile": "exact bootstrap"}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report says."""

    title: str
    header: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...]
    arms: pd.DataFrame
    differences: pd.DataFrame
    evidence: Mapping[str, pd.DataFrame]
    facts: Mapping[str, Any]


def build(reader: Reader, selection: Selection, question: Question) -> Report:
    """Read a store once and say what is in it. Raises UserError for a reference or a filter that names nothing."""
    answers = Answers(reader, selection.campaign)
    arms = arms_table(reader, selection, answers)
    some = not arms.empty
    differences = differences_table(reader, question, selection, answers) if some else pd.DataFrame()
    pools = selection.apply_pool(pooled_table(reader, question, answers=answers)) if some else pd.DataFrame()
    changes = protection_table(reader, question.reference, question.rule, answers=answers) if some else pd.DataFrame()
    seeds = seeds_table(reader, question, answers=answers) if some else pd.DataFrame()
    facts = _facts(reader, selection, arms)
    sheets = [
        sheet
        for _, part in arms.groupby(["model", "task", "comparison_id"], sort=False)
        for sheet in _sheets(part, differences, question)
    ]
    sheets += [*report_evidence.protection(changes, arms, question.reference), *report_evidence.pools(pools)]
    title = f"Job {selection.campaign}" if selection.campaign else "All jobs"
    notes = (
        *report_notes.progress(reader, arms),
        *_stopping(reader, question, answers),
        *report_notes.engine(arms),
        *report_notes.reading(differences, question),
        *report_evidence.notes(
            differences,
            pools,
            seeds[seeds["cell_id"].isin(arms["cell_id"])] if some else seeds,
            changed=bool(len(changes)),
        ),
        *report_notes.model_facts(map(str, arms["model"])),
    )
    evidence = {"pooled": pools, "protection": changes, "common_seeds": seeds}
    return Report(title, tuple(_header(facts, arms)), tuple(sheets), notes, arms, differences, evidence, facts)


def _stopping(reader: Reader, question: Question, answers: Answers) -> Iterable[str]:
    if question.stopping is not None:
        table = stopping_table(reader, question, answers=answers)
        yield from report_notes.stopping(table, question.stopping.width)


def _facts(reader: Reader, selection: Selection, arms: pd.DataFrame) -> dict[str, Any]:
    cells = [str(cell_id) for cell_id in arms[arms["rows"] > 0]["cell_id"]]
    named = ["cell_id", "gpu", "finished_at", "git_revision", "grader", "judge", "grader_version", "grade_method"]
    rows = reader.rows(named, cells)
    return {
        "store": reader.paths.name,
        "job": selection.campaign,
        "rows": len(rows),
        "planned_rows": int((arms["planned_problems"] * arms["planned_samples"]).sum()),
        "first_row": rows["finished_at"].min().isoformat() if len(rows) else None,
        "last_row": rows["finished_at"].max().isoformat() if len(rows) else None,
        "devices": sorted(set(rows["gpu"])),
        "graders": _graders(rows),
        "flipped_time_limits": int(rows["grade_method"].str.contains("flipped", na=False).sum()),
        "git_revisions": sorted({str(revision) for revision in rows["git_revision"]} - {""}),
        "versions": [json.loads(text) for text in reader.versions(cells)] if cells else [],
        "skipped_files": [{"path": str(skipped.path), "reason": skipped.reason} for skipped in reader.skipped],
        "simulated_cells": simulated_cells(reader),
    }


def _graders(rows: pd.DataFrame) -> list[str]:
    """`math v2`, `program v2 by process`: whose verdicts the report counts, the newest of every row."""
    found = rows[["grader", "judge", "grader_version"]].dropna().drop_duplicates()
    return sorted(
        f"{row['grader']} v{row['grader_version']}" + ("" if row["judge"] == NO_JUDGE else f" by {row['judge']}")
        for _, row in found.iterrows()
    )


def _header(facts: Mapping[str, Any], arms: pd.DataFrame) -> Iterable[str]:
    if not facts["rows"]:
        planned = "No rows yet: the job is planned and nothing is committed."
        yield planned if len(arms) else "No rows and no plan yet: run a job first (evictbench run jobs/demo.yaml)."
        return
    planned = f" of {facts['planned_rows']:,} planned" if facts["planned_rows"] else ""
    first, last = (facts[name][:16].replace("T", " ") for name in ("first_row", "last_row"))
    devices = ", ".join(facts["devices"])
    yield f"{facts['rows']:,} rows{planned} in {len(arms)} arms, made {first} to {last} UTC on {devices}"
    for versions in facts["versions"]:
        yield ", ".join(f"{name} {number}" for name, number in versions.items())
    if facts["graders"]:
        yield f"graded by {', '.join(facts['graders'])}"
    if facts["flipped_time_limits"]:
        yield f"{facts['flipped_time_limits']} programs passed their time limit only when run again alone"
    if facts["git_revisions"]:
        yield f"evictbench revision {', '.join(revision[:12] for revision in facts['git_revisions'])}"


def _sheets(arms: pd.DataFrame, differences: pd.DataFrame, question: Question) -> Iterable[Sheet]:
    """Accuracy, differences and eviction facts of one model and task."""
    budgets = arms[["keep", "interval"]].dropna().drop_duplicates()
    task = str(arms.iloc[0]["task"])
    where = f"{arms.iloc[0]['model']}, {task}"
    if len(budgets) == 1:
        where += f", keep {budgets.iloc[0]['keep']}, interval {budgets.iloc[0]['interval']}"
    several = len(budgets) > 1
    yield _accuracy(arms, where, several)
    mine = differences[differences["cell_id"].isin(arms["cell_id"])] if len(differences) else differences
    if len(mine):
        rule = "each arm's own protection" if question.same_protection else "prompt protected"
        yield _differences(mine, f"Paired difference to {question.reference} ({rule}): {task}", several)
        yield _tests(mine, f"Tests beside it, which decide nothing: {task}", several)
    if arms["keep"].notna().any():
        yield _eviction(arms[arms["rows"] > 0], f"What eviction did: {task}", several)


def _accuracy(arms: pd.DataFrame, where: str, several: bool) -> Sheet:
    unfinished = [_done(arm) for _, arm in arms.iterrows()]
    show_done = set(unfinished) != {"all"}
    # Boxes inside unfinished thoughts, which the paper counted; equal where no thought was cut.
    show_lenient = bool(((arms["lenient"] - arms["accuracy"]).abs() > 1e-9).any())
    lenient = [">lenient"] if show_lenient else []
    sizes = {f"{arm['problems']}×{arm['samples']}" for _, arm in arms.iterrows()}
    size = [">n"] if len(sizes) > 1 else []
    columns = [">accuracy", ">95 % interval", *lenient, *size, ">wrong", ">no answer", ">cut off", ">error", ">tokens"]
    rows = [
        (
            *arm_names(arm, several),
            figures.points(arm["accuracy"]),
            figures.interval(arm["low"], arm["high"], signed=False),
            *([figures.points(arm["lenient"])] if show_lenient else []),
            *([f"{arm['problems']}×{arm['samples']}"] if size else []),
            *(figures.percent(arm[name]) for name in ("wrong", "no_answer", "truncated", "error")),
            figures.number(arm["output_tokens"], ",.0f"),
            *([done] if show_done else []),
        )
        for (_, arm), done in zip(arms.iterrows(), unfinished, strict=True)
    ]
    columns += [">done"] if show_done else []
    title = f"Accuracy: {where}" + ("" if size else f", n {sizes.pop()}")
    return Sheet(title, (*arm_columns(several), *columns), tuple(rows))


def _differences(table: pd.DataFrame, title: str, several: bool) -> Sheet:
    sizes = {_size(row) for _, row in table.iterrows()}
    looks = bool(table["looks"].notna().any())
    rows = [
        (
            *_pair(row, several),
            figures.points(row["difference"], signed=True),
            figures.interval(row["low"], row["high"]),
            *([_look(row)] if looks else []),
            verdict(row),
            *([_size(row)] if len(sizes) > 1 else []),
            f"{row['wins']}/{row['losses']}/{row['ties']}",
            figures.points(row["detectable"]),
        )
        for _, row in table.iterrows()
    ]
    interval = (">interval", ">look and level") if looks else (">95 % interval",)
    n = [">n"] if len(sizes) > 1 else []
    columns = (*arm_columns(several), ">points", *interval, "verdict", *n, ">won/ lost/ tied", ">detects")
    return Sheet(title if n else f"{title}, n {sizes.pop()}", columns, tuple(rows))


def _look(row: pd.Series[Any]) -> str:
    """`2 of 4, 99.7 %`: the look whose interval is shown."""
    if pd.isna(row["looks"]):
        return figures.MISSING
    number = figures.MISSING if pd.isna(row["look"]) else row["look"]
    return f"{number} of {row['looks']}, {100 * (1 - row['alpha']):.4g} %"


def _tests(table: pd.DataFrame, title: str, several: bool) -> Sheet:
    """The interval that does not decide, and the exact tests."""
    rows = []
    for _, row in table.iterrows():
        decides, other = ("t", "percentile") if row["interval_kind"] == "t" else ("percentile", "t")
        interval = figures.interval(row[f"{other}_low"], row[f"{other}_high"])
        tests = (figures.p_value(row[name]) for name in ("p_sign", "p_signflip", "p_holm", "p_bh"))
        rows.append((*_pair(row, several), _INTERVALS[decides], interval, *tests))
    columns = ("decided by", ">other interval", ">sign p", ">flip p", ">Holm p", ">BH p")
    return Sheet(title, (*arm_columns(several), *columns), tuple(rows))


def _eviction(arms: pd.DataFrame, title: str, several: bool) -> Sheet:
    rows = [
        (
            *arm_names(arm, several),
            figures.number(arm["events"], ",.1f"),
            figures.percent(arm["prompt_kept_mean"]),
            figures.percent(arm["prompt_kept_min"]),
            figures.number(arm["cached_mean"], ",.0f"),
            figures.number(arm["cached_peak"], ",.0f"),
            figures.percent(arm["never_evicts"]),
            figures.number(arm["decode_tokens_per_second"], ",.0f"),
        )
        for _, arm in arms.iterrows()
    ]
    columns = (">events", ">prompt kept", ">least", ">cached", ">peak", ">no event", ">tokens/s each")
    return Sheet(title, (*arm_columns(several), *columns), tuple(rows))


def _pair(row: pd.Series[Any], several: bool) -> tuple[str, ...]:
    """Like _arm, with the budget at which the two meet: `full` meets the reference at each of its budgets."""
    return (*arm_names(row, several=False), *([f"{row['at_keep']}/{row['at_interval']}"] if several else []))


def _size(row: pd.Series[Any]) -> str:
    """Problems × answers per problem of the arm and, where it differs, of the reference: `198×4`, `198×4:2`."""
    mine, theirs = (row[name] / row["problems"] if row["problems"] else 0 for name in ("samples", "reference_samples"))
    return f"{row['problems']}×{mine:.3g}" + ("" if mine == theirs else f":{theirs:.3g}")


def _done(arm: pd.Series[Any]) -> str:
    if arm["invalid"]:
        return "INVALID"
    if pd.isna(arm["done"]):
        return "?"
    if bool(arm["complete"]):
        return "all"
    return f"{100 * arm['done']:.0f} %" if arm["done"] < 1 else "grading"
