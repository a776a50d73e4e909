"""What is still to run for a publication, and what it costs: published lengths over published speeds.

Hours are those of one H200 as the paper used it; tokens per answer from its length table (the full cache's where an
arm has none), tokens per second from its serving table (TriAttention's, the slower, for every scored method).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import pandas as pd

from orchestrator.analysis_columns import frame
from orchestrator.analysis_rows import records
from orchestrator.cells import canonical_json
from orchestrator.replication.arms import Wanted, wanted
from orchestrator.replication.columns import CAMPAIGN, Status
from orchestrator.replication.names import CONTENDERS, MODELS, REFERENCE, TASKS
from orchestrator.replication.published import PAPERS, published

_SERVING = "serving 1k/32k"


def not_run(missing: Iterable[Wanted]) -> dict[str, Any]:
    """Columns of a number whose arms are missing from the store."""
    arms = list(missing)
    return {
        "status": Status.NOT_RUN.value,
        "needs": "; ".join(arm.label for arm in arms),
        "gpu_hours": sum(hours(arm) for arm in arms),
    }


def campaign(table: pd.DataFrame) -> pd.DataFrame:
    """Arms that the numbers still need, each once: columns CAMPAIGN. Third parties' numbers ask for nothing."""
    counts: dict[Wanted, int] = {}
    open_ = table[(table["status"] == Status.NOT_RUN) & table["needs"].notna() & ~table["third_party"].astype(bool)]
    for row in records(open_):
        needed = set(row["needs"].split("; "))
        for arm in wanted(row)[0]:
            if arm.label in needed:
                counts[arm] = counts.get(arm, 0) + 1
    rows = [
        {
            "model": MODELS[arm.model],
            "task": TASKS[arm.task].name,
            "policy": arm.ours.policies[0],
            "policy_params": canonical_json(dict(arm.ours.params)),
            "protection": arm.ours.protections(arm.protection)[0],
            "keep": arm.keep,
            "problems": TASKS[arm.task].problems,
            "samples": TASKS[arm.task].samples,
            "numbers": numbers,
            "tokens_per_answer": tokens(arm),
            "tokens_per_second": speed(arm),
            "gpu_hours": hours(arm),
        }
        for arm, numbers in counts.items()
    ]
    return frame(rows, CAMPAIGN)


def hours(arm: Wanted) -> float:
    """GPU-hours of one arm at the published number of answers."""
    task = TASKS[arm.task]
    return task.problems * task.samples * tokens(arm) / speed(arm) / 3600


def tokens(arm: Wanted) -> float:
    """Generated tokens per answer."""
    lengths = _lengths()
    own = lengths.get((arm.model, arm.task, arm.method, arm.keep))
    return 1000 * (lengths[arm.model, arm.task, "Full", None] if own is None else own)


def speed(arm: Wanted) -> float:
    """Generated tokens per second of one H200."""
    return speed_of(arm.model, arm.method)


def speed_of(model: str, method: str) -> float:
    """Published tokens per second of a model under a method."""
    measured = "TriAttention" if method in CONTENDERS else "Full" if method == "Full" else REFERENCE
    return _speeds()[model, measured]


@cache
def _lengths() -> Mapping[tuple[Any, ...], float]:
    return {
        (row["model"], row["task"], row["policy"], row["keep"]): row["value"]
        for row in _numbers("mean_generated_ktokens")
    }


@cache
def _speeds() -> Mapping[tuple[Any, ...], float]:
    rows = [row for row in _numbers("output_tok_s") if row["task"] == _SERVING and row["keep"] in (None, 2048)]
    return {(row["model"], row["policy"]): row["value"] for row in rows}


def _numbers(metric: str) -> list[dict[str, Any]]:
    table = published(PAPERS["random-attention"])
    return records(table[(table["metric"] == metric) & ~table["third_party"].astype(bool)])
