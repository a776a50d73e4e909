"""What every sheet of a report shares: the table of strings, the marks of verdicts, how an arm is named."""

from __future__ import annotations

import json
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
    params = ",".join(f"{key}={value}" for key, value in json.loads(row["policy_params"]).items())
    name = f"{row['policy']}({params})" if params else row["policy"]
    if pd.notna(row["recent"]) and row["recent"] != row["interval"]:
        name += f" recent{row['recent']}"
    budget = figures.MISSING if pd.isna(row["keep"]) else f"{row['keep']}/{row['interval']}"
    return (name, row["protection"] or figures.MISSING, *([budget] if several else []))


def verdict(row: pd.Series[Any]) -> str:
    """`▼ worse`, `· unresolved (too few), provisional` of a row with verdict, reason and provisional."""
    mark = VERDICTS[Verdict(row["verdict"])][0]
    short = f" ({row['reason'].split(':')[0]})" if row["reason"] else ""
    return f"{mark} {row['verdict']}{short}{', provisional' if row['provisional'] else ''}"
