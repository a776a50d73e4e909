"""How many samples each (model, task) gets where the results decide: `samples: {min, max, until_width}`.

Looks are after declared numbers of samples. At a look all arms of a (model, task) are judged together: when every
interval of a difference to the reference is narrow enough, none of them gets more, else all go on to the next look.
The rule looks at widths and never at signs, so that intervals at the end stay nominal (infra/bench/adaptive.py).
What was decided follows from committed, graded rows alone: any driver comes to the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from orchestrator.analysis_pairs import Answers, pair_problems
from orchestrator.cells import ModelRef, TaskRef
from orchestrator.grid import Plan, PlannedCell
from orchestrator.planning import references
from orchestrator.spec import JobSpec
from orchestrator.stats.verdict import OURS, deciding_kind, interval
from orchestrator.store.reader import Reader

Group = tuple[ModelRef, TaskRef]


def looks(job: JobSpec) -> tuple[int, ...]:
    """Samples at which the job looks: analysis.looks between min and max, else min doubled until max; max ends both."""
    samples = job.samples
    assert samples is not None, "only an adaptive job has looks of its own"
    declared = [look for look in job.analysis.looks if samples.min <= look < samples.max]
    if not declared:
        doubled = (samples.min * 2**k for k in range(32))
        declared = [look for look in doubled if look < samples.max]
    return (*declared, samples.max)


def decided(plan: Plan, store: Path) -> Plan:
    """The plan with samples_max = what the rows of the store call for so far; itself if the job fixes samples.

    Without a store, or without rows, every cell gets its first look.
    """
    samples = plan.job.samples
    if samples is None or not samples.adaptive:
        return plan
    answers = Answers(Reader(store)) if store.exists() else None
    wanted = {group: _target(plan, cells, answers) for group, cells in groups(plan).items()}
    cells = tuple(replace(c, samples_max=wanted[c.cell.model, c.cell.task]) for c in plan.cells)
    note = (
        f"samples: looks after {', '.join(map(str, looks(plan.job)))}; more of a (model, task) only while an interval "
        f"is wider than {samples.until_width:g} points. Sizes are those of the looks decided so far."
    )
    return replace(plan, cells=cells, notes=tuple(dict.fromkeys((*plan.notes, note))))


def groups(plan: Plan) -> dict[Group, list[PlannedCell]]:
    """Cells that get samples together."""
    found: dict[Group, list[PlannedCell]] = {}
    for planned in plan.cells:
        found.setdefault((planned.cell.model, planned.cell.task), []).append(planned)
    return found


def _target(plan: Plan, cells: Sequence[PlannedCell], answers: Answers | None) -> int:
    """The first look that is not complete, or that is narrow enough to be the last."""
    assert plan.job.samples is not None
    until = plan.job.samples.until_width
    stages = looks(plan.job)
    for look in stages:
        if answers is None or not all(_reached(cell, answers, look) for cell in cells):
            return look
        if until is not None and all(width <= until for width in widths(plan, cells, answers, look)):
            return look
    return stages[-1]


def _reached(planned: PlannedCell, answers: Answers, look: int) -> bool:
    cell = answers.cells.get(planned.cell_id)
    return cell is not None and answers.samples_done(cell) >= look


def widths(plan: Plan, cells: Sequence[PlannedCell], answers: Answers, look: int) -> Iterator[float]:
    """Width in points of every difference to its reference at a look; infinite where it has no interval yet."""
    problems = answers.problems(look)
    for planned in cells:
        for reference in references(planned, plan):
            both = [_whole(problems.get(cell.cell_id), look) for cell in (planned, reference)]
            common = both[0].index.intersection(both[1].index)
            paired = pair_problems(both[0], both[1], common)
            low, high = interval(paired, deciding_kind(paired, OURS), 1 - OURS.alpha)
            yield math.inf if math.isnan(low) else 100 * (high - low)


def _whole(part: pd.DataFrame | None, look: int) -> pd.DataFrame:
    if part is None:
        return pd.DataFrame({"counts": [], "right": []}, dtype="int64")
    return part[part["counts"] >= look]
