"""How many samples each (model, task) gets where the results decide: `samples: {min, max, until_width}`.

Looks are after declared numbers of samples. At a look all arms of a (model, task) are judged together: when every
interval of a difference to the reference is narrow enough, none of them gets more, else all go on to the next look.
The rule looks at widths and never at signs, so that verdicts at the end stay nominal (docs/adaptive.md).
What was decided follows from committed, graded rows alone: any driver comes to the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from orchestrator.analysis_pairs import Answers, pair_problems
from orchestrator.cells import ModelRef, TaskRef
from orchestrator.grid import Plan, PlannedCell
from orchestrator.planning import references
from orchestrator.spec import JobSpec
from orchestrator.stats.sequential import between, width
from orchestrator.store.reader import Reader
from orchestrator.store.writer import missing

Group = tuple[ModelRef, TaskRef]


def looks(job: JobSpec) -> tuple[int, ...]:
    """Samples at which the job looks: analysis.looks between min and max, else min doubled until max; max ends both."""
    samples = job.samples
    assert samples is not None, "only an adaptive job has looks of its own"
    return between(samples.min, samples.max, job.analysis.looks)


def decided(plan: Plan, store: Path) -> Plan:
    """The plan with samples_max = what the rows of the store call for so far; itself if the job fixes samples.

    Without a store, or without rows, every cell gets its first look.
    """
    samples = plan.job.samples
    if samples is None or not samples.adaptive:
        return plan
    answers = None if missing(store) else Answers(Reader(store))
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
        if until is not None and all(found <= until for found in widths(plan, cells, answers, look)):
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
            yield width(pair_problems(both[0], both[1], common))


def _whole(part: pd.DataFrame | None, look: int) -> pd.DataFrame:
    if part is None:
        return pd.DataFrame({"counts": [], "right": []}, dtype="int64")
    return part[part["counts"] >= look]
