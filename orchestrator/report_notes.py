"""Sentences under a report: what is unfinished or left out, how to read it, what its models are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from orchestrator import figures
from orchestrator.analysis import Question, simulated_cells
from orchestrator.models import EMBEDDED_DIR
from orchestrator.stats.verdict import FEWEST_NON_TIES, FEWEST_PROBLEMS, PERCENTILE_FROM
from orchestrator.store.files import read_json
from orchestrator.store.reader import Reader

_EMBEDDED = "embedded:"


def progress(reader: Reader, arms: pd.DataFrame) -> Iterable[str]:
    """What is missing from the tables and what to do about it."""
    unfinished = int((~arms["complete"].fillna(True)).sum())
    if unfinished:
        yield (
            f"Unfinished: {unfinished} of {len(arms)} arms lack rows or grades, so their verdicts are provisional. "
            "Run the job again to finish them."
        )
    invalid = arms[arms["invalid"] > 0]
    if len(invalid):
        yield (
            f"INVALID: attestation failed in {invalid['invalid'].sum()} rows of {', '.join(invalid['cell_label'])}. "
            "They did not evict as their policy says: they count nowhere, and their arms get no verdict."
        )
    if reader.skipped:
        named = "; ".join(f"{skipped.path} ({skipped.reason})" for skipped in reader.skipped[:3])
        more = f" and {len(reader.skipped) - 3} more" if len(reader.skipped) > 3 else ""
        yield f"Skipped unreadable files ({len(reader.skipped)}): {named}{more}. Delete them and run the job again."
    simulated = simulated_cells(reader)
    if simulated:
        yield f"Left out: {len(simulated)} cells whose rows a simulated engine made; they are never results."


def engine(arms: pd.DataFrame) -> Iterable[str]:
    """Preemptions and prompts that did not fit: both should be 0, and both are always said."""
    arms = arms[arms["rows"] > 0]
    if arms.empty:
        return
    words = []
    for column, name in (("preemptions", "Preemptions"), ("overflow_rows", "Rows whose prompt did not fit into keep")):
        found = arms[arms[column].fillna(0) > 0]
        counts = [f"{row['cell_label']} {row[column]:,}" for _, row in found.iterrows()]
        words.append(f"{name}: {', '.join(counts) or 'none'}.")
    modes = sorted(set(arms["overflow_mode"].dropna()))
    yield " ".join([*words, *([f"Overflow rule: {', '.join(modes)}."] if modes else [])])
    if arms["keep"].notna().any():
        yield (
            "What eviction did: means over answers; least: prompt kept in the worst head of any answer; cached, peak: "
            "tokens per KV head, on average and at most; no event: answers that never evicted; tokens/s each: decoding "
            "speed of one answer among others, no throughput (that is evictbench bench)."
        )


def stopping(table: pd.DataFrame, width: float) -> Iterable[str]:
    """How many samples each (model, task) of an adaptive job got, and what that saved."""
    for _, row in table.iterrows():
        where, count = f"{row['model']}, {row['task']}", f"{row['samples']} of at most {row['most']} samples"
        if not row["ended"]:
            yield f"{where}: {count} so far; more follow while an interval is wider than {width:g} points."
        elif row["samples"] < row["most"]:
            saved = figures.percent(row["saved"])
            yield f"{where}: ended after {count}, all intervals within {width:g} points; {saved} of the rows saved."
        else:
            yield f"{where}: all {row['most']} samples, since an interval stayed wider than {width:g} points."


def reading(differences: pd.DataFrame, question: Question) -> Iterable[str]:
    """How the verdicts come about, and what the table of differences leaves out."""
    if differences.empty:
        return
    decides = (
        "the exact bootstrap interval"
        if question.rule.published
        else f"the t interval below {PERCENTILE_FROM} problems, the exact bootstrap interval from there on"
    )
    yield (
        "Differences are points of accuracy on the same problems. better or worse: the 95 % problem-clustered "
        f"interval excludes 0 ({decides}). Fewer than {FEWEST_PROBLEMS} problems, or {FEWEST_NON_TIES} that differ, "
        "are too few. Unresolved does not mean equal."
    )
    family = {"model": "of one model", "task": "of one model and task", "all": "of the store"}[question.family]
    yield (
        "n: problems×samples. Sign and sign-flip p are exact and decide nothing; Holm p corrects the flip p over the "
        f"arms {family}, full apart. detects: difference found with 80 % probability at this size and spread, "
        "- where no spread was seen."
    )
    if question.rule.margin is not None:
        yield f"equivalent: the 90 % interval lies within {figures.points(question.rule.margin)} points of 0."
    excluded = differences["excluded"].max()
    if excluded:
        yield f"Problems without all their answers in both arms are left out: up to {excluded} in a comparison."
    arms = differences[differences["policy"] != "full"]
    yield from _short_traces(arms[arms["long_problems"] < arms["problems"]])
    open_ = arms[(arms["verdict"] == "unresolved") & arms["problems_needed"].notna()]
    needs = [f"{row['policy']} {row['protection']} {row['problems_needed']:,}" for _, row in open_.iterrows()]
    if needs:
        yield f"Problems that would settle a difference as large as the one measured: {', '.join(needs)}."


def model_facts(models: Iterable[str]) -> Iterable[str]:
    """What a reader must know of the models: notes that lie beside their weights, if they can be read from here."""
    for model in dict.fromkeys(models):
        embedded = model.startswith(_EMBEDDED)
        directory = EMBEDDED_DIR / model.removeprefix(_EMBEDDED) if embedded else Path(model)
        facts = read_json(directory / "evictbench.json")
        notes = facts.get("notes", []) if isinstance(facts, dict) else []
        yield from (f"{model}: {note}." for note in notes)


def _short_traces(table: pd.DataFrame) -> Iterable[str]:
    for _, row in table.iterrows():
        fit = f"{row['problems'] - row['long_problems']} of {row['problems']} problems"
        if not row["long_problems"]:
            yield f"{row['cell_label']}: {fit} fit into keep under the full cache, so nothing here tests eviction."
            continue
        difference = figures.points(row["long_difference"], signed=True)
        yield (
            f"{row['cell_label']}: {fit} fit into keep under the full cache; on the others the difference is "
            f"{difference} {figures.interval(row['long_low'], row['long_high'])}."
        )
