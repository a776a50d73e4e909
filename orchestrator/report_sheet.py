"""What every sheet of a report shares: the table of strings, the marks of verdicts, how an arm is named."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator import figures
from orchestrator.stats.verdict import Verdict

# Mark and colour of each verdict; never colour alone.
VERDICTS = {
    Verdict.BETTER: ("▲", "green"),
    Verdict.WORSE: ("▼", "red"),
    Verdict.EQUIVALENT: ("≈", "cyan"),
    Verdict.UNRESOLVED: ("·", "dim"),
}


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table of strings. Columns whose name starts with `>` hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def arm_columns(several: bool) -> tuple[str, ...]:
    """Columns that arm_names fills; several: the sheet holds several budgets."""
    return ("policy", "protects", ">keep/r") if several else ("policy", "protects")


def arm_names(row: pd.Series[Any], several: bool) -> tuple[str, ...]:
    """Name with what is unusual about it (as in cell labels), protection and, where budgets differ, keep/interval."""
    params = ",".join(f"{key}={_short(value)}" for key, value in json.loads(row["policy_params"]).items())
    name = f"{row['policy']}({params})" if params else row["policy"]
    if pd.notna(row["recent"]) and row["recent"] != row["interval"]:
        name += f" recent{row['recent']}"
    budget = figures.MISSING if pd.isna(row["keep"]) else f"{row['keep']}/{row['interval']}"
    return (name, row["protection"] or figures.MISSING, *([budget] if several else []))


def verdict(row: pd.Series[Any]) -> str:
    """`▼ worse`, `· unresolved (2 differ), provisional` of a row with verdict, reason and provisional."""
    return marked(row["verdict"], row["reason"]) + (", provisional" if row["provisional"] else "")


def marked(verdict: str, reason: str) -> str:
    """A verdict with its mark, and in brackets why there is none: `· unresolved (8 problems)`."""
    mark = VERDICTS[Verdict(verdict)][0]
    if few := _FEW.match(reason):
        count = "none" if few[1] == "0" and few[2] == "differ" else few[1]
        return f"{mark} {verdict} ({count} {few[2]})"
    return f"{mark} {verdict}" + (f" ({reason.split(':')[0]})" if reason else "")


_FEW = re.compile(r"too few: (\d+) (?:problems )?(problems|differ|rounds)")
_LONG = 16


def _short(value: Any) -> str:
    """A parameter's value where a table names an arm: lists by their length, long texts by their beginning."""
    if isinstance(value, list):
        return f"[{len(value)}]"
    text = str(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"
