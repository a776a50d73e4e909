"""Forecast of a plan before anything runs: rows to make, tokens, time, disk, and what each comparison could resolve.

Every figure says where it comes from: committed rows of the store where there are any, else a documented default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import work_list
from orchestrator.cells import Cell, canonical_json
from orchestrator.chunks import BLOCK, blocks_for, plan_missing
from orchestrator.errors import UserError
from orchestrator.grid import Plan, PlannedCell
from orchestrator.history import History
from orchestrator.lengths import DEFAULT_DOUBT, PEER_DOUBT, source_of
from orchestrator.stats.power import planned_difference
from orchestrator.store.rows import comparison_id
from policies.budget import Protection
from workers.api import EngineSpec

# Careful figures for a model that has no row in the store yet: one engine, start to finish.
DEFAULT_TOKENS_PER_SECOND = 1500.0
ENGINE_START_SECONDS = 30.0
# Text compresses to about 3 bytes a token; the rest is columns and file overhead of a chunk.
DEFAULT_BYTES_PER_TOKEN = 3.0
BYTES_PER_CHUNK = 24_000
# Below this the report calls a comparison unresolved whatever it shows (contracts.md section 6).
FEWEST_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class CellForecast:
    """One cell: chunks planned and already committed, rows and generated tokens still to make.

    source  where tokens_per_row comes from
    doubt   factor by which tokens_per_row may be off, either way
    """

    planned: PlannedCell
    chunks: int
    committed: int
    rows: int
    tokens_per_row: float
    source: str
    doubt: float

    @property
    def tokens(self) -> float:
        """Generated tokens still to make."""
        return self.rows * self.tokens_per_row


@dataclass(frozen=True, slots=True)
class EngineForecast:
    """One engine: its cells, generated tokens still to make, speed and where that figure comes from, seconds.

    least, most  seconds if every length and the speed are off by their doubt
    """

    spec: EngineSpec
    model: str
    cells: int
    tokens: float
    tokens_per_second: float
    source: str
    least: float
    most: float

    @property
    def seconds(self) -> float:
        """Start and generation; 0 when nothing is missing."""
        return ENGINE_START_SECONDS + self.tokens / self.tokens_per_second if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class ComparisonForecast:
    """One cell against its reference: the smallest difference found with 80 % power, in points of accuracy."""

    cell_id: str
    reference_id: str
    task: str
    n_problems: int
    samples: int
    points: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Everything that `evictbench plan` prints. Seconds are those of one engine at a time."""

    name: str
    store: str
    cells: tuple[CellForecast, ...]
    engines: tuple[EngineForecast, ...]
    comparisons: tuple[ComparisonForecast, ...]
    disk_bytes: float
    gpu: str
    gpu_hours: float
    gpu_hours_range: tuple[float, float]
    cost: float | None
    notes: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Generations still to make."""
        return sum(cell.rows for cell in self.cells)

    @property
    def tokens(self) -> float:
        """Generated tokens still to make."""
        return sum(cell.tokens for cell in self.cells)

    @property
    def seconds(self) -> float:
        """Wall time of one engine at a time."""
        return sum(engine.seconds for engine in self.engines)


def forecast(plan: Plan, history: History, store: str) -> Forecast:
    """Pure: the same plan and history give the same figures. `store` is only named."""
    cells = tuple(_cell(plan, planned, history) for planned in plan.cells)
    engines = tuple(_engines(plan, cells, history))
    job = plan.job
    gpus = job.resources.tp * job.resources.pp
    hours, least, most = (
        sum(seconds) / 3600 * gpus
        for seconds in zip(*((engine.seconds, engine.least, engine.most) for engine in engines), strict=True)
    )
    rate = job.execution.rates.get(job.resources.gpu)
    comparisons = tuple(_comparisons(plan))
    tokens, chunks = sum(cell.tokens for cell in cells), sum(cell.chunks - cell.committed for cell in cells)
    per_token = history.bytes_per_token
    return Forecast(
        name=job.name,
        store=store,
        cells=cells,
        engines=engines,
        comparisons=comparisons,
        disk_bytes=tokens * per_token if per_token else tokens * DEFAULT_BYTES_PER_TOKEN + chunks * BYTES_PER_CHUNK,
        gpu=job.resources.gpu,
        gpu_hours=hours,
        gpu_hours_range=(least, most),
        cost=None if rate is None else rate * hours,
        notes=(*plan.notes, *_remarks(plan, comparisons, hours)),
    )


def refuse_small_budget(plan: Plan, expected: Forecast) -> None:
    """Raises UserError for a budget that ends before the cheapest chunk does, whatever the doubts of the forecast."""
    job = plan.job
    limit, gpus = job.execution.hours(job.resources.gpu), job.resources.tp * job.resources.pp
    speeds = {engine.spec: engine.tokens_per_second * DEFAULT_DOUBT for engine in expected.engines}
    chunks = [
        (ENGINE_START_SECONDS + BLOCK * cell.tokens_per_row / cell.doubt / speeds[cell.planned.engine]) * gpus / 3600
        for cell in expected.cells
        if cell.rows
    ]
    if limit is not None and chunks and limit < min(chunks):
        raise UserError(
            f"{job.place('execution', 'budget')}: {limit:.3g} GPU-hours are too few for one chunk: an engine's start "
            f"and {BLOCK} rows take at least {min(chunks):.2g}. The whole job needs about {expected.gpu_hours:,.2g}. "
            "Raise the budget, or leave it out."
        )


def references(planned: PlannedCell, plan: Plan) -> list[PlannedCell]:
    """The cells that the report compares a cell with (the rule of analysis.differences_table): never itself.

    The prompt-protected arm of the reference policy at the same model, task, keep and interval; for `full`, which has
    no budget, one for each keep and interval.
    """
    cell = planned.cell
    candidates = [
        other
        for other in plan.cells
        if other.cell.policy.name == plan.job.analysis.reference
        and comparison_id(other.cell) == comparison_id(cell)
        and (cell.budget is None or _axes(other.cell) == _axes(cell))
    ]
    recent = cell.budget.recent if cell.budget else None
    candidates.sort(key=lambda other: _plainness(other.cell, recent))
    first: dict[tuple[int, int] | None, PlannedCell] = {}
    for other in candidates:
        first.setdefault(_axes(other.cell), other)
    return [other for other in first.values() if other is not planned]


def _axes(cell: Cell) -> tuple[int, int] | None:
    return (cell.budget.keep, cell.budget.interval) if cell.budget else None


def _plainness(cell: Cell, recent: int | None) -> tuple[bool, bool, str]:
    own = cell.budget.recent if cell.budget else None
    return cell.protection is not Protection.PROMPT, own != recent, canonical_json(dict(cell.policy.params))


def _cell(plan: Plan, planned: PlannedCell, history: History) -> CellForecast:
    cell, cell_id = planned.cell, planned.cell_id
    missing = plan_missing(cell_id, planned.n_problems, planned.samples_max, history.committed)
    total = planned.samples_max * blocks_for(planned.n_problems)
    rows = sum(min(BLOCK, planned.n_problems - chunk.block * BLOCK) for chunk in missing)
    source, lengths = source_of(cell), history.lengths
    tokens = lengths.level(source, planned.expected_tokens)
    if rows:
        expected = work_list.expected_tokens(plan, planned, lengths)
        tokens = sum(sum(expected[chunk.block]) for chunk in missing) / rows
    origin, doubt = lengths.origin(source), lengths.doubt(source)
    return CellForecast(planned, total, total - len(missing), rows, tokens, origin, doubt)


def _engines(plan: Plan, cells: tuple[CellForecast, ...], history: History) -> Iterator[EngineForecast]:
    for spec, tenants in plan.engines.items():
        model = tenants[0].cell.model.path
        mine = [cell for cell in cells if cell.planned.engine == spec]
        tokens = sum(cell.tokens for cell in mine)
        measured = history.speed.get(model)
        speed, source, doubt = (
            (measured, "rows of the store", PEER_DOUBT)
            if measured
            else (DEFAULT_TOKENS_PER_SECOND, "a careful default", DEFAULT_DOUBT)
        )
        start = ENGINE_START_SECONDS if tokens else 0.0
        least = start + sum(cell.tokens / cell.doubt for cell in mine) / (speed * doubt)
        most = start + sum(cell.tokens * cell.doubt for cell in mine) / (speed / doubt)
        yield EngineForecast(spec, model, len(tenants), tokens, speed, source, least, most)


def _comparisons(plan: Plan) -> Iterator[ComparisonForecast]:
    for planned in plan.cells:
        for reference in references(planned, plan):
            yield ComparisonForecast(
                planned.cell_id,
                reference.cell_id,
                planned.cell.task.name,
                planned.n_problems,
                planned.samples_max,
                100 * planned_difference(planned.n_problems, planned.samples_max),
            )


def _remarks(plan: Plan, comparisons: tuple[ComparisonForecast, ...], hours: float) -> Iterator[str]:
    job = plan.job
    sources = {planned.cell.policy.name: planned.cell.policy.source for planned in plan.cells}
    for name, source in sources.items():
        if source:
            yield f"policy file {name.partition(':')[0]} runs in every engine; hash {source}."
    if not comparisons:
        yield f"nothing is compared: no arm stands beside one of the reference '{job.analysis.reference}'."
    compared = {entry.cell_id for entry in comparisons}
    for planned in plan.cells if comparisons else ():
        if planned.cell_id not in compared and planned.cell.policy.name != job.analysis.reference:
            yield (
                f"{planned.cell.task.name}: {planned.cell.arm_label} is compared with nothing: the job has no "
                f"'{job.analysis.reference}' at its keep and interval."
            )
    for task in dict.fromkeys(entry.task for entry in comparisons if entry.n_problems < FEWEST_PROBLEMS):
        yield f"{task}: fewer than {FEWEST_PROBLEMS} problems; the report will call every comparison unresolved."
    limit = job.execution.hours(job.resources.gpu)
    if limit is not None and hours > limit:
        yield f"the estimate of {hours:.1f} GPU-hours exceeds execution.budget ({limit:.3g} GPU-hours)."
