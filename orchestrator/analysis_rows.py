"""Cells and counted answers of a store: what every analysis table is made from.

A row counts when it is attested and has a verdict other than error. Simulated cells are never among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.store import aggregates
from orchestrator.store.reader import CELL_COLUMNS, Reader
from orchestrator.tasks.base import Verdict

_FACTS = (
    *("cell_id", "problem_id", "sample", "status", "verdict", "lenient", "n_prompt", "n_output", "events"),
    *("prompt_kept_mean", "prompt_kept_min", "cached_peak", "cached_mean", "overflow"),
    *("decode_tokens_per_second", "num_preemptions"),
)


def cells_of(reader: Reader, campaign: str | None) -> pd.DataFrame:
    """Cells with rows or in a plan: CELL_COLUMNS, rows, graded, invalid, planned_problems, planned_samples."""
    found, plan = reader.cells(), reader.plan(campaign)
    simulated = set(found[found["simulated"].astype(bool)]["cell_id"])
    planned = pd.DataFrame([_planned(row) for row in records(plan)], columns=list(CELL_COLUMNS))
    if campaign is not None:
        found = found[found["cell_id"].isin(plan["cell_id"])]
    found = found[~found["cell_id"].isin(simulated)]
    waiting = planned[~planned["cell_id"].isin({*found["cell_id"], *simulated})]
    cells = pd.concat([found.astype(object), waiting.astype(object)]) if len(waiting) else found.astype(object)
    sizes = plan.set_index("cell_id")[["n_problems", "samples_max"]].astype(object)
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


def counted(reader: Reader, cells: pd.DataFrame) -> pd.DataFrame:
    """All rows of the cells with `counts` and `right`."""
    rows = reader.rows(_FACTS, [str(cell_id) for cell_id in cells["cell_id"]])
    graded = ~rows["verdict"].isin([Verdict.ERROR, Verdict.UNGRADED]) & rows["verdict"].notna()
    rows["counts"] = graded & (rows["status"] == "ok")
    rows["right"] = rows["counts"] & (rows["verdict"] == Verdict.CORRECT)
    rows["length"] = (rows["n_prompt"] + rows["n_output"]).astype(float)
    return rows


def problems_of(reader: Reader, cell_ids: Sequence[str], samples: int | None = None) -> dict[str, pd.DataFrame]:
    """Per cell: counted and right answers and mean trace length of every problem, by problem id.

    samples: only sample indices below it. Summed in the store; no row is loaded.
    """
    sums = aggregates.problem_sums(reader, cell_ids, samples)
    # Indexes of Python strings: those that Arrow holds are turned into such again for every look-up.
    sums = sums.astype({"counts": np.int64, "right": np.int64, "problem_id": object}).set_index("problem_id")
    return {str(cell_id): part.drop(columns="cell_id") for cell_id, part in sums.groupby("cell_id", sort=False)}


def planned_rows(cell: Mapping[str, Any]) -> int | None:
    """Rows that make a cell complete; None without a plan."""
    planned = (cell["planned_problems"], cell["planned_samples"])
    return None if pd.isna(planned[0]) else int(planned[0] * planned[1])


def complete(cell: Mapping[str, Any]) -> bool | None:
    """Whether all planned rows are there and graded; None without a plan."""
    planned = planned_rows(cell)
    return None if planned is None else bool(cell["rows"] >= planned and cell["graded"] >= cell["rows"])


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings, missing values as None."""
    return [{str(k): None if pd.isna(v) else v for k, v in row.items()} for row in table.to_dict("records")]
