"""Sheets and notes beyond one comparison: protection against score, pools, looks, common seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from orchestrator import figures
from orchestrator.analysis_pooled import ALL
from orchestrator.report_sheet import Sheet, verdict


def protection(table: pd.DataFrame, arms: pd.DataFrame, reference: str) -> Iterable[Sheet]:
    """What protecting the prompt changes, policy by policy, for the cells shown, and beyond the reference's change."""
    if table.empty:
        return
    for (_, task), part in table[table["cell_id"].isin(arms["cell_id"])].groupby(["model", "task"], sort=False):
        several = len(part[["keep", "interval"]].drop_duplicates()) > 1
        rows = tuple(
            (
                f"{row['policy']} {row['keep']}/{row['interval']}" if several else str(row["policy"]),
                figures.points(row["bare_accuracy"]),
                figures.points(row["accuracy"]),
                figures.points(row["change"], signed=True),
                figures.interval(row["low"], row["high"]),
                verdict(row),
                f"{row['wins']}/{row['losses']}/{row['ties']}",
                figures.points(row["beyond"], signed=True),
                figures.interval(row["beyond_low"], row["beyond_high"]),
            )
            for _, row in part.iterrows()
        )
        change = (">unprotected", ">protected", ">change", ">95 % interval", "verdict", ">won/ lost/ tied")
        more = (f">beyond {reference}'s", ">its interval")
        yield Sheet(f"Score or protection, paired by problem: {task}", ("policy", *change, *more), rows)


def pools(table: pd.DataFrame) -> Iterable[Sheet]:
    """Differences over several tasks or models, each scope a sheet; each (model, task) weighs the same."""
    if table.empty:
        return
    for scope, part in table[table["weights"] == "cells"].groupby("scope", sort=False):
        rows = tuple(
            (
                str(row["policy"]),
                str(row["protection"]),
                ", ".join(name for name in (row["model"], row["task"]) if name != ALL) or ALL,
                figures.points(row["difference"], signed=True),
                figures.interval(row["low"], row["high"]),
                verdict(row),
                f"{row['wins']}/{row['losses']}/{row['ties']}",
                figures.points(row["detectable"]),
                figures.percent(row["equivalence_power"]),
                figures.points(row["long_difference"], signed=True),
            )
            for _, row in part.iterrows()
        )
        columns = ("policy", "protects", "over", ">points", ">95 % interval", "verdict", ">won/ lost/ tied")
        more = (">detects", ">equal?", ">long")
        yield Sheet(f"Pooled, clustered by problem: {scope}", (*columns, *more), rows)


def notes(
    differences: pd.DataFrame, pooled: pd.DataFrame, seeds: pd.DataFrame, *, changed: bool = False
) -> Iterable[str]:
    """How to read levels of looks, pools and changes by protection; what common seeds bought."""
    if len(differences) and differences["looks"].notna().any():
        yield _looks(differences[differences["looks"].notna()])
    if len(pooled):
        margin = figures.points(pooled.iloc[0]["margin"])
        yield (
            "Pooled: every (model, task) weighs the same, a problem is one cluster whichever models answered it. "
            f"equal?: chance to show equivalence within {margin} points if there is no difference; long: on problems "
            "whose full-cache trace exceeds keep."
        )
    if changed:
        yield (
            "Score or protection: what protecting the prompt changes, and how far that goes beyond the same change of "
            "the reference."
        )
    measured = seeds[seeds["variance_ratio"].notna()] if len(seeds) else seeds
    if len(measured):
        each = [f"{row['task']} {row['policy']} {row['protection']} {_ratio(row)}" for _, row in measured.iterrows()]
        yield f"Common seeds: variance of the difference against unrelated seeds [95 % interval]: {', '.join(each)}."


def _looks(table: pd.DataFrame) -> str:
    levels = {(int(row["look"]), float(row["alpha"])) for _, row in table.iterrows() if pd.notna(row["look"])}
    named = ", ".join(f"look {look} at level 1 − {alpha:.2g}" for look, alpha in sorted(levels)) or "none reached"
    return (
        f"Looks declared: {int(table['looks'].max())}; intervals shown are those of each comparison's look: {named} "
        "(O'Brien-Fleming spending of 5 % over all looks)."
    )


def _ratio(row: pd.Series[Any]) -> str:
    low, high = (figures.number(row[name], ".2f") for name in ("variance_low", "variance_high"))
    return f"{row['variance_ratio']:.2f} [{low}, {high}]"
