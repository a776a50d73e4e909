"""Expansion: a job and a machine become a plan of cells, engines and rows. Nothing starts and nothing is written.

Whatever can be known to fail is refused here, all of it at once: missing models, prompts that do not fit the context,
budgets that can never be honoured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from orchestrator import calibrations, feasibility
from orchestrator.arms import Arm, canonical, grid_arms, points
from orchestrator.cells import Cell, ModelRef, TaskRef
from orchestrator.chunks import BLOCK, ChunkId, Row, Work, plan_missing
from orchestrator.engine_groups import Tenant, engine_specs
from orchestrator.errors import UserError
from orchestrator.model_cards import system_note
from orchestrator.resources import LoadedModel, LoadedTask, LocalResources, Prompts, Resources, load_model, load_task
from orchestrator.scaling import ScaledResources
from orchestrator.seeds import eviction_seed, sample_seed
from orchestrator.spec import JobSpec
from orchestrator.spec_sections import ExcludeSpec
from orchestrator.tasks.base import Task
from workers.api import EngineSpec, Eviction, Request, Sampling

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell with what this job wants of it.

    expected_tokens  generated tokens per row that the task declares (at most max_tokens), before any row is known
    """

    cell: Cell
    cell_id: str
    arm: Arm
    n_problems: int
    samples_min: int
    samples_max: int
    engine: EngineSpec
    expected_tokens: int


@dataclass(frozen=True)
class Plan:
    """What a job means on this machine. Cells keep the order of the file: model, task, arm."""

    job: JobSpec
    cells: tuple[PlannedCell, ...]
    notes: tuple[str, ...]
    prompts: Mapping[tuple[ModelRef, TaskRef], Prompts]
    tasks: Mapping[TaskRef, Task]

    def cell(self, cell_id: str) -> PlannedCell:
        """The planned cell of an id. Raises KeyError for a cell of another job."""
        return self._by_id[cell_id]

    @cached_property
    def engines(self) -> dict[EngineSpec, tuple[PlannedCell, ...]]:
        """Cells by the engine that runs them, in order of first use."""
        groups: dict[EngineSpec, tuple[PlannedCell, ...]] = {}
        for planned in self.cells:
            groups[planned.engine] = (*groups.get(planned.engine, ()), planned)
        return groups

    def missing(self, committed: Iterable[ChunkId]) -> tuple[ChunkId, ...]:
        """Chunks still to run: engine by engine, and inside one the arms in turn, so that comparisons pair up early."""
        done = frozenset(committed)
        ordered: list[ChunkId] = []
        for tenants in self.engines.values():
            ranked = [
                (chunk.sample, chunk.block, rank, chunk)
                for rank, planned in enumerate(tenants)
                for chunk in plan_missing(planned.cell_id, planned.n_problems, planned.samples_max, done)
            ]
            ordered += [chunk for *_, chunk in sorted(ranked, key=lambda item: item[:3])]
        return tuple(ordered)

    def build(self, chunk: ChunkId, attempt: int) -> Work:
        """The rows of a chunk, ready for an engine. Raises KeyError for a cell of another job."""
        planned = self.cell(chunk.cell_id)
        prompts = self.prompts[planned.cell.model, planned.cell.task]
        first = chunk.block * BLOCK
        indices = range(first, min(first + BLOCK, planned.n_problems))
        assert indices, f"block {chunk.block} lies behind the {planned.n_problems} problems of {planned.cell.label}"
        rows = tuple(_row(planned, prompts, index, chunk.sample, attempt) for index in indices)
        return Work(chunk, attempt, rows)

    @cached_property
    def _by_id(self) -> dict[str, PlannedCell]:
        return {planned.cell_id: planned for planned in self.cells}


@dataclass(frozen=True, slots=True)
class _Point:
    model: LoadedModel
    task: LoadedTask
    arm: Arm


def expand(job: JobSpec, resources: Resources | None = None) -> Plan:
    """Multiply a job out. Raises UserError with every reason why it cannot run as written."""
    found = resources or (ScaledResources(job.scale) if job.scale else LocalResources())
    mistakes: list[str] = []
    models = _loaded(load_model, job, len(job.models), found, mistakes)
    tasks = _loaded(load_task, job, len(job.tasks), found, mistakes)
    if mistakes:
        raise UserError("\n".join(mistakes))
    prompts = {(m.ref, t.ref): Prompts(t.problems, found.render(m.resolved, t.problems)) for m in models for t in tasks}
    grid = _grid(job, models, tasks)
    notes = [f"{model.ref.path}: {note}." for model in models for note in model.resolved.notes]
    notes += [f"{model.ref.path}: sampling {model.sampling.sources}." for model in models if model.sampling.sources]
    notes += [note for task in tasks for note in task.notes]
    first = {model.ref: prompts[model.ref, tasks[0].ref].rendered[0] for model in models}
    notes += [f"{note}." for ref, prompt in first.items() if (note := system_note(ref.path, prompt.text)) is not None]
    _judge(job, models, tasks, grid, prompts, notes)
    cells = _merged(job, grid, notes)
    return Plan(
        job, _planned(job, cells, prompts), tuple(dict.fromkeys(notes)), prompts, {t.ref: t.task for t in tasks}
    )


def _loaded(
    load: Callable[[JobSpec, int, Resources], T], job: JobSpec, count: int, found: Resources, mistakes: list[str]
) -> list[T]:
    values = []
    for index in range(count):
        try:
            values.append(load(job, index, found))
        except UserError as error:
            mistakes.append(str(error))
    return values


def _grid(job: JobSpec, models: Sequence[LoadedModel], tasks: Sequence[LoadedTask]) -> list[_Point]:
    """The product minus excludes, then includes. Raises UserError for an exclude that excludes nothing."""
    product = [_Point(model, task, arm) for model in models for task in tasks for arm in grid_arms(job)]
    idle = [index for index, entry in enumerate(job.exclude) if not any(_matches(entry, point) for point in product)]
    if idle:
        raise UserError(
            "\n".join(
                f"{job.place('exclude', index)}: matches no point of the grid. Mend or remove it." for index in idle
            )
        )
    kept = [point for point in product if not any(_matches(entry, point) for entry in job.exclude)]
    for index, entry in enumerate(job.include):
        kept += [
            _Point(model, task, arm)
            for model in models
            for task in tasks
            if _allows(entry.model, model.spec.path) and _allows(entry.task, task.spec.name)
            for arm in points(entry, job.arms, ("include", index))
        ]
    if not kept:
        raise UserError(f"{job.place('exclude')}: the excludes leave no point of the grid. Remove some.")
    return kept


def _matches(entry: ExcludeSpec, point: _Point) -> bool:
    arm = point.arm
    return (
        _allows(entry.model, point.model.spec.path)
        and _allows(entry.task, point.task.spec.name)
        and _allows(entry.policy, arm.name)
        and _allows(entry.keep, arm.keep)
        and _allows(entry.interval, arm.rule.budget.interval if arm.rule else None)
        and _allows(entry.protection, arm.rule.protection if arm.rule else None)
    )


def _allows(choices: tuple[T, ...] | None, value: T | None) -> bool:
    return choices is None or value in choices


def _judge(
    job: JobSpec,
    models: Sequence[LoadedModel],
    tasks: Sequence[LoadedTask],
    grid: Sequence[_Point],
    prompts: Mapping[tuple[ModelRef, TaskRef], Prompts],
    notes: list[str],
) -> None:
    """Add remarks to `notes`. Raises UserError with every refusal."""
    refusals = [text for index, model in enumerate(models) for text in feasibility.model_refusals(job, index, model)]
    for model in models:
        for task in tasks:
            refusals += feasibility.context_refusals(job, model, task, prompts[model.ref, task.ref].lengths)
    for point in grid:
        refusals += feasibility.needs_refusals(job, point.arm)
        refusals += calibrations.refusals(job, models.index(point.model), point.model, point.arm)
        lengths = prompts[point.model.ref, point.task.ref].lengths
        refusals += feasibility.budget_refusals(job, point.arm, point.task.spec.name, lengths)
        notes += feasibility.budget_notes(point.arm, point.task.spec.name, lengths, point.model.sampling.ref.max_tokens)
    if refusals:
        raise UserError("\n".join(dict.fromkeys(refusals)))


def _merged(job: JobSpec, grid: Sequence[_Point], notes: list[str]) -> dict[str, tuple[Cell, _Point]]:
    """Cells by id; grid points that are one cell are run once, and `notes` says which."""
    cells: dict[str, tuple[Cell, _Point]] = {}
    for written in grid:
        point = replace(written, arm=calibrations.calibrated(job, written.model, canonical(written.arm)))
        cell = _cell(job, point)
        if point.arm.policy.name != written.arm.policy.name:
            notes.append(f"{written.arm.title} equals {point.arm.title} by definition and runs as that.")
        if cell.cell_id in cells and point.arm.policy.name == written.arm.policy.name:
            notes.append(f"{written.arm.title} is in the job more than once and runs once.")
        cells.setdefault(cell.cell_id, (cell, point))
    return cells


def _cell(job: JobSpec, point: _Point) -> Cell:
    arm = point.arm
    return Cell(
        model=point.model.ref,
        task=point.task.ref,
        policy=arm.ref,
        budget=arm.rule.budget if arm.rule else None,
        protection=arm.rule.protection if arm.rule else None,
        n_sink=arm.rule.n_sink if arm.rule else None,
        overflow=arm.rule.overflow if arm.rule else None,
        sampling=point.model.sampling.ref,
        protocol=_protocol(job),
        sample_base_seed=job.seeds.sampling,
        eviction_base_seed=job.seeds.eviction,
    )


def _protocol(job: JobSpec) -> str:
    """Simulated and scaled rows must never fill a cell of real ones."""
    protocol = "simulated" if job.engine.kind == "simulated" else job.protocol
    return f"scaled {protocol}" if job.scale else protocol


def _planned(
    job: JobSpec,
    cells: Mapping[str, tuple[Cell, _Point]],
    prompts: Mapping[tuple[ModelRef, TaskRef], Prompts],
) -> tuple[PlannedCell, ...]:
    tenants = {
        cell_id: Tenant(point.model, point.arm, prompts[cell.model, cell.task].lengths)
        for cell_id, (cell, point) in cells.items()
    }
    specs = engine_specs(job, tenants)
    tasks = {point.task.ref: point.task.task for _, point in cells.values()}
    samples = {cell_id: _samples(job, tasks[cell.task], cell) for cell_id, (cell, _) in cells.items()}
    expected = {ref: task.expected_tokens for ref, task in tasks.items()}
    return tuple(
        PlannedCell(
            cell=cell,
            cell_id=cell_id,
            arm=point.arm,
            n_problems=len(point.task.problems),
            samples_min=job.samples.min if job.samples is not None else samples[cell_id],
            samples_max=samples[cell_id],
            engine=specs[cell_id],
            expected_tokens=min(expected[cell.task], cell.sampling.max_tokens),
        )
        for cell_id, (cell, point) in cells.items()
    )


def _samples(job: JobSpec, task: Task, cell: Cell) -> int:
    """The job's number, else the task's own; a greedy answer is the same every time."""
    if job.samples is not None:
        return job.samples.max
    return task.samples_default if cell.sampling.temperature > 0 else 1


def _row(planned: PlannedCell, prompts: Prompts, index: int, sample: int, attempt: int) -> Row:
    cell, problem, prompt = planned.cell, prompts.problems[index], prompts.rendered[index]
    seed = sample_seed(cell.sample_base_seed, cell.task.name, problem.problem_id, sample)
    ref = cell.sampling
    # A card's max_tokens gives way to the prompt; one that the job names was checked to fit.
    max_tokens = min(ref.max_tokens, cell.model.max_model_len - len(prompt.token_ids))
    request = Request(
        request_id=f"{planned.cell_id}/{problem.problem_id}/{sample}@{attempt}",
        prompt_token_ids=tuple(prompt.token_ids),
        sampling=Sampling(ref.temperature, max_tokens, ref.top_p, ref.top_k, ref.min_p, seed),
        eviction=eviction_of(
            planned, eviction_seed(cell.eviction_base_seed, cell.task.name, problem.problem_id, sample)
        ),
    )
    return Row(problem.problem_id, seed, prompt.sha256, request)


def eviction_of(planned: PlannedCell, seed: int) -> Eviction | None:
    """What a request of the cell asks for, with the eviction seed; None for `full`."""
    rule = planned.arm.rule
    if rule is None:
        return None
    return Eviction(
        policy=planned.arm.reference,
        params=planned.cell.policy.params,
        keep=rule.budget.keep,
        recent=rule.budget.recent,
        protection=rule.protection,
        n_sink=rule.n_sink,
        seed=seed,
        overflow=rule.overflow,
    )
