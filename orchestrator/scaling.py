"""`--scale`: a job in small on the embedded model, to see it run end to end before it costs GPU-hours.

Problems and samples shrink by the given share; models and problem sets are replaced by the reasoner and its walks, and
keeps shrink with the length of its answers, so that every arm evicts at about the compression that the job asks for.
Campaign name, task names and cell identity say so: scaled rows never mix with real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator import models
from orchestrator.chunks import BLOCK
from orchestrator.errors import UserError
from orchestrator.models import ResolvedModel
from orchestrator.resources import LocalResources
from orchestrator.spec import JobSpec, Scale
from orchestrator.tasks import registry
from orchestrator.tasks.base import Grade, Problem, Task
from orchestrator.tasks.reasoner import DEFAULT_PROBLEMS, ReasonerW

MODEL = "embedded:reasoner"
MODEL_LENGTH = 2048
MAX_TOKENS = 1500
INTERVAL = 16
MIN_KEEP = 64
"""Holds the reasoner's prompt, INTERVAL newest tokens and a few to choose: less would be refused."""
SEQUENCES = 32

# Additions of the longest stand-in: the reasoner's standard difficulty.
_STEPS = 29
_SPREAD = 3


def scaled(job: JobSpec, share: float) -> JobSpec:
    """The job at `share` of its problems and samples. Raises UserError unless 0 < share <= 1."""
    if not 0 < share <= 1:
        raise UserError(f"--scale {share:g}: give a share of problems and samples, above 0 and at most 1, as in 0.01.")
    longest = max(_original(task.name, task.options()).expected_tokens for task in job.tasks)
    scale = Scale(share, ReasonerW().expected_tokens / longest)
    data = job.model_dump(mode="json", exclude_unset=True)
    data["name"] = f"{job.name[:48]}-scale-{share:g}"
    data["models"] = [{"path": MODEL, "max_model_len": MODEL_LENGTH}]
    for task in data["tasks"]:
        if task.get("limit"):
            task["limit"] = _fewer(task["limit"], share)
    for settings in (data["arms"], *data["arms"]["policies"], *data.get("include", ()), *data.get("exclude", ())):
        _shrink(settings, "keep", lambda keep: max(MIN_KEEP, round(keep * scale.lengths)))
        _shrink(settings, "interval", lambda interval: min(interval, INTERVAL))
    data["arms"].setdefault("interval", [INTERVAL])
    _merge_models(data, {model.path for model in job.models})
    if job.samples is not None:
        data["samples"] = max(1, round(job.samples.max * share))
    data["sampling"] = {**data.get("sampling", {}), "max_tokens": MAX_TOKENS}
    data.get("analysis", {}).pop("looks", None)
    data["engine"] = {"kind": job.engine.kind, "max_num_seqs": min(job.engine.max_num_seqs, SEQUENCES)}
    data.pop("resources", None)
    data["execution"] = {"store": job.execution.store}
    return job.rescaled(data, scale)


class ScaledResources:
    """Stand-ins for every task; the embedded model is on every machine."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._local = LocalResources()

    def model(self, path: str, revision: str | None) -> ResolvedModel:
        """As Resources.model."""
        return models.resolve(path, revision)

    def task(self, name: str, options: Mapping[str, Any]) -> Task:
        """As Resources.task; the task's data need not be here."""
        original = _original(name, options)
        return StandIn(
            of=name,
            count=_fewer(problem_count(original), self._scale.share),
            samples_default=max(1, round(original.samples_default * self._scale.share)),
            walk=_walk(original.expected_tokens * self._scale.lengths),
        )

    def render(self, model: ResolvedModel, problems: Sequence[Problem]) -> tuple[Any, ...]:
        """As Resources.render."""
        return self._local.render(model, problems)


@dataclass(frozen=True)
class StandIn:
    """Walks in place of the problems of task `of`; a Task with a name of its own."""

    of: str
    count: int
    samples_default: int
    walk: ReasonerW = field(repr=False)

    @property
    def name(self) -> str:
        return f"scaled_{self.of}"

    @property
    def version(self) -> int:
        return self.walk.version

    @property
    def revision(self) -> str:
        return self.walk.revision

    @property
    def prompt_hash(self) -> str:
        return self.walk.prompt_hash

    @property
    def grader(self) -> str:
        return self.walk.grader

    @property
    def grader_version(self) -> int:
        return self.walk.grader_version

    @property
    def size(self) -> int | None:
        return self.count

    @property
    def expected_tokens(self) -> int:
        return self.walk.expected_tokens

    @property
    def licence(self) -> str:
        return self.walk.licence

    def problems(self, limit: int | None = None) -> Sequence[Problem]:
        """As Task.problems."""
        return self.walk.problems(self.count if limit is None else min(limit, self.count))

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        """As Task.grade."""
        return self.walk.grade(problem, text, finish_reason)


def _original(name: str, options: Mapping[str, Any]) -> Task:
    return registry.get(name, **options)


def problem_count(task: Task) -> int:
    """Problems of the whole task, without loading its data where the task knows."""
    known: int | None = getattr(task, "count", None) or task.size
    return known or DEFAULT_PROBLEMS


def _walk(tokens: float) -> ReasonerW:
    """The difficulty whose answers have about that many tokens."""
    middle = max(_SPREAD + 1, round(_STEPS * tokens / ReasonerW().expected_tokens))
    return ReasonerW(steps=f"{middle - _SPREAD}-{middle + _SPREAD}")


def _fewer(count: int, share: float) -> int:
    return BLOCK * math.ceil(count * share / BLOCK)


def _shrink(settings: dict[str, Any], key: str, change: Callable[[int], int]) -> None:
    if settings.get(key):
        settings[key] = list(dict.fromkeys(change(value) for value in settings[key]))


def _merge_models(data: dict[str, Any], paths: set[str]) -> None:
    """One model stands for all: what holds for any of them holds for it."""
    for entry in data.get("include", ()):
        entry.pop("model", None)
    data["exclude"] = [entry for entry in data.get("exclude", ()) if set(entry.pop("model", None) or paths) == paths]
