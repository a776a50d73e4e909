"""The chunks of a plan that are missing, as the scheduler takes them in."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.grid import Plan, PlannedCell
from orchestrator.lengths import Lengths, source_of
from orchestrator.messages import Planned
from orchestrator.store.rows import comparison_id


def expected_tokens(plan: Plan, planned: PlannedCell, lengths: Lengths) -> list[list[float]]:
    """Generated tokens to expect of every problem of a cell, by block."""
    cell, source = planned.cell, source_of(planned.cell)
    problems = plan.prompts[cell.model, cell.task].problems[: planned.n_problems]
    rows = [
        min(lengths.expected(source, problem.problem_id, planned.expected_tokens), cell.sampling.max_tokens)
        for problem in problems
    ]
    return [rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK)]


def work_list(
    plan: Plan, done: set[ChunkId], attempts: Iterable[tuple[ChunkId, int]], lengths: Lengths
) -> tuple[Planned, ...]:
    """`attempts` are those on record; new ones are numbered on from the highest."""
    groups = {planned.cell_id: comparison_id(planned.cell) for planned in plan.cells}
    means = {
        planned.cell_id: [sum(rows) / len(rows) for rows in expected_tokens(plan, planned, lengths)]
        for planned in plan.cells
    }
    longest: dict[tuple[str, int], float] = {}
    for planned in plan.cells:
        for block, mean in enumerate(means[planned.cell_id]):
            key = groups[planned.cell_id], block
            longest[key] = max(longest.get(key, 0.0), mean)
    last: dict[ChunkId, int] = {}
    for chunk, attempt in attempts:
        last[chunk] = max(last.get(chunk, 0), attempt)
    arms = {planned.cell_id: arm for arm, planned in enumerate(plan.cells)}
    found = []
    for chunk in plan.missing(done):
        cell, group = plan.cell(chunk.cell_id), groups[chunk.cell_id]
        found.append(
            Planned(
                chunk=chunk,
                engine=cell.engine,
                rows=min(BLOCK, cell.n_problems - chunk.block * BLOCK),
                expected_tokens=means[chunk.cell_id][chunk.block],
                group=group,
                arm=arms[chunk.cell_id],
                attempts=last.get(chunk, 0),
                block_tokens=longest[group, chunk.block],
            )
        )
    return tuple(found)
