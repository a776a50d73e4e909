"""The replication table: every published number beside what a store says about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from orchestrator.analysis_columns import frame
from orchestrator.analysis_rows import planned_rows, records
from orchestrator.replication import costs, counts, design, estimates, facts, probes, serving
from orchestrator.replication.arms import AVERAGE_TASK, COUNTED, SURVIVAL, Wanted, wanted
from orchestrator.replication.columns import REPLICATION, Status
from orchestrator.replication.probes import ProbeRun
from orchestrator.replication.published import named, published
from orchestrator.replication.run import Run
from orchestrator.store.reader import Reader

Row = Mapping[str, Any]
Columns = dict[str, Any]


def replication_table(reader: Reader, paper: str = "random-attention", probed: Sequence[ProbeRun] = ()) -> pd.DataFrame:
    """One row per published number with the columns REPLICATION, in the order of the publication.

    consistent         the published value lies in the prediction interval, or the printed range touches it
    deviates           it does not
    differs by design  the run differs on purpose (`reason`); `inside` still says which of the two it would be
    not run            no cell of the store is this arm (`needs`, `gpu_hours`), or nothing here measures it (`reason`)

    probed: results of evictbench probe, which lie beside stores. Third parties' numbers are marked third_party. Raises
    UserError for an unknown paper.
    """
    run = Run(reader)
    numbers = published(named(paper))
    rows = [{**row, **_found(row, run, probed)} for row in records(numbers)]
    return frame(rows, REPLICATION)


def _found(row: Row, run: Run, probed: Sequence[ProbeRun]) -> Columns:
    arms, sign = wanted(row)
    if not arms:
        measured = facts.found(row, run) or serving.found(row, run.throughput) or probes.found(row, probed)
        why = {"status": Status.NOT_RUN.value, "reason": facts.why_not(row)}
        return measured or serving.not_run(row) or why
    if row["metric"] in COUNTED:
        return counts.found(row, run)
    cells = [run.arm(arm) for arm in arms]
    missing = [arm for arm, cell in zip(arms, cells, strict=True) if cell is None]
    if missing:
        return costs.not_run(missing)
    present = [cell for cell in cells if cell is not None]
    columns = _estimate(row, arms, present, run, sign)
    if not columns:
        return {"status": Status.NOT_RUN.value, "reason": "no problem is complete yet"}
    withheld = "; ".join(dict.fromkeys(text for cell in present for text in _withheld(cell, run)))
    if withheld:
        return {**columns, "status": Status.NOT_RUN.value, "reason": withheld}
    return {**columns, **_status(row, columns, _differences(arms, present, run))}


def _estimate(row: Row, arms: Sequence[Wanted], cells: Sequence[Row], run: Run, sign: int) -> Columns:
    if row["task"] == AVERAGE_TASK:
        return estimates.average(row, arms, cells, run)
    if row["metric"] == SURVIVAL:
        return estimates.surviving(row, arms[0], cells[0], run)
    if len(arms) == 1:
        return estimates.one_arm(row, arms[0], cells[0], run)
    return estimates.two_arms(row, (arms[0], arms[1]), (cells[0], cells[1]), run, sign)


def _withheld(cell: Mapping[str, Any], run: Run) -> Iterator[str]:
    """Why the estimate of a cell decides nothing yet."""
    if cell["invalid"]:
        yield f"invalid: attestation failed in {cell['invalid']} rows"
    if run.unfinished(cell):
        yield f"unfinished: {cell['rows']} rows of {planned_rows(dict(cell))}"


def _differences(arms: Sequence[Wanted], cells: Sequence[Row], run: Run) -> str:
    """What the arms do otherwise than the publication, each reason once."""
    found = [
        reason
        for arm, cell in zip(arms, cells, strict=True)
        for reason in design.reasons(cell, run.identities.get(str(cell["cell_id"])), arm.model)
    ]
    return "; ".join(dict.fromkeys(found))


def _status(row: Row, columns: Columns, reason: str) -> Columns:
    low, high = columns["predicted_low"], columns["predicted_high"]
    if math.isnan(low):
        return {"status": Status.NOT_RUN.value, "reason": "several samples are needed for a spread"}
    inside = bool(row["value_low"] <= high and row["value_high"] >= low)
    status = Status.CONSISTENT if inside else Status.DEVIATES
    return {"inside": inside, "status": (Status.BY_DESIGN if reason else status).value, "reason": reason}
