"""What expansion needs from this machine: models, tasks and rendered prompts, each looked up once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from orchestrator import models
from orchestrator.cells import ModelRef, TaskRef
from orchestrator.chunks import BLOCK, blocks_for
from orchestrator.errors import UserError
from orchestrator.model_cards import PUBLISHED, Settled, settle
from orchestrator.models import ResolvedModel
from orchestrator.prompts import Rendered, Renderer
from orchestrator.spec import JobSpec
from orchestrator.spec_sections import ModelSpec, TaskSpec
from orchestrator.tasks import registry
from orchestrator.tasks.base import Problem, Task


class Resources(Protocol):
    """The seam between a job and a machine; a test or a planner for another machine brings its own."""

    def model(self, path: str, revision: str | None) -> ResolvedModel:
        """Raises UserError when the model is not on this machine."""

    def task(self, name: str, options: Mapping[str, Any]) -> Task:
        """Raises UserError for impossible options or missing data."""

    def render(self, model: ResolvedModel, problems: Sequence[Problem]) -> tuple[Rendered, ...]:
        """One rendered prompt per problem, in order. Raises UserError when the model has no usable chat template."""


class LocalResources:
    """Models and data of this machine."""

    def __init__(self) -> None:
        self._renderers: dict[str, Renderer] = {}

    def model(self, path: str, revision: str | None) -> ResolvedModel:
        """As Resources.model."""
        return models.resolve(path, revision)

    def task(self, name: str, options: Mapping[str, Any]) -> Task:
        """As Resources.task."""
        return registry.get(name, **options)

    def render(self, model: ResolvedModel, problems: Sequence[Problem]) -> tuple[Rendered, ...]:
        """As Resources.render; a model's tokenizer is loaded once."""
        key = str(model.path_on_disk)
        if key not in self._renderers:
            self._renderers[key] = Renderer(model)
        return tuple(self._renderers[key].render(problem.messages) for problem in problems)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model of the job, found on this machine."""

    spec: ModelSpec
    ref: ModelRef
    resolved: ResolvedModel
    sampling: Settled


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task of the job with the problems that will run."""

    spec: TaskSpec
    ref: TaskRef
    task: Task
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompts:
    """Every problem of a task as one model sees it."""

    problems: tuple[Problem, ...]
    rendered: tuple[Rendered, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Prompt tokens per problem."""
        return tuple(len(prompt.token_ids) for prompt in self.rendered)


def load_model(job: JobSpec, index: int, found: Resources) -> LoadedModel:
    """Find models[index]. Raises UserError with its place in the job file."""
    spec = job.models[index]
    try:
        resolved = found.model(spec.path, spec.revision)
    except UserError as error:
        raise UserError(f"{job.place('models', index, 'path')}: {error}") from None
    try:
        sampling = settle(job.sampling, spec.path, resolved, spec.max_model_len, job.protocol)
    except UserError as error:
        raise UserError(f"{job.place('sampling')}: {error}") from None
    ref = ModelRef(spec.path, resolved.revision, spec.dtype.value, sampling.window)
    return LoadedModel(spec, ref, resolved, sampling)


def task_options(spec: TaskSpec, folder: Path) -> dict[str, Any]:
    """A task's options with paths taken relative to `folder`."""
    paths = registry.path_options(spec.name)
    return {key: str(folder / value) if key in paths else value for key, value in spec.options().items()}


def load_task(job: JobSpec, index: int, found: Resources) -> LoadedTask:
    """Load tasks[index] and its first problems, whole blocks only. Raises UserError with its place in the job file."""
    spec = job.tasks[index]
    options = task_options(spec, job.folder)
    bundle = registry.published(spec.name) if job.protocol == PUBLISHED else {}
    options |= bundle
    notes = []
    if bundle:
        notes.append(f"{spec.name}: protocol published sets {', '.join(f'{k}: {v}' for k, v in bundle.items())}.")
    limit = None if spec.limit is None else blocks_for(spec.limit) * BLOCK
    try:
        task = found.task(spec.name, options)
        if limit is not None and task.size is not None:
            limit = min(limit, task.size)
        problems = tuple(task.problems(limit))
    except UserError as error:
        raise UserError(f"{job.place('tasks', index)}: {error}") from None
    if spec.limit is not None and len(problems) > spec.limit:
        notes.append(
            f"{spec.name}: limit {spec.limit} rounds up to {len(problems)} problems (whole blocks of {BLOCK})."
        )
    if tail := len(problems) % BLOCK if getattr(task, "growing", False) else 0:
        # A short block would be committed under the name that the full one needs once the file has grown.
        run, total = len(problems) - tail, len(problems)
        problems = problems[:run]
        notes.append(f"{spec.name}: {run} of {total} problems run; the rest wait until their block of {BLOCK} is full.")
    if not problems:
        raise UserError(
            f"{job.place('tasks', index)}: task '{spec.name}' has no whole block of {BLOCK} problems to run."
        )
    ref = TaskRef(task.name, task.version, task.revision, task.prompt_hash)
    return LoadedTask(spec, ref, task, problems, tuple(notes))
