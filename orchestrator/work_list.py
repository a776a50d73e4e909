"""The chunks of a plan that are missing, as the scheduler takes them in."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.grid import Plan
from orchestrator.messages import Planned
from orchestrator.store.rows import comparison_id


def work_list(plan: Plan, done: set[ChunkId], attempts: Iterable[tuple[ChunkId, int]]) -> tuple[Planned, ...]:
    """`attempts` are those on record; new ones are numbered on from the highest."""
    arms = {planned.cell_id: arm for arm, planned in enumerate(plan.cells)}
    groups = {planned.cell_id: comparison_id(planned.cell) for planned in plan.cells}
    last: dict[ChunkId, int] = {}
    for chunk, attempt in attempts:
        last[chunk] = max(last.get(chunk, 0), attempt)
    found = []
    for chunk in plan.missing(done):
        cell = plan.cell(chunk.cell_id)
        rows = min(BLOCK, cell.n_problems - chunk.block * BLOCK)
        group, arm = groups[chunk.cell_id], arms[chunk.cell_id]
        found.append(Planned(chunk, cell.engine, rows, cell.expected_tokens, group, arm, last.get(chunk, 0)))
    return tuple(found)
