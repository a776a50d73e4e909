"""The size of a job where its models and data are not: rows, tokens and hours from what the tasks declare alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.models import ResolvedModel
from orchestrator.prompts import Rendered
from orchestrator.scaling import problem_count
from orchestrator.tasks import registry
from orchestrator.tasks.base import Grade, Problem, Task

OUTLINE_NOTE = (
    "outline: sizes alone. Models, data, prompts that may not fit, and rows that the store holds are not looked at."
)

_UNKNOWN = "not looked at"
_PROMPT = Rendered("", (0,) * 64, "")


class OutlineResources:
    """Resources that touch neither a model nor a data set."""

    def model(self, path: str, revision: str | None) -> ResolvedModel:
        """A model without limits."""
        return ResolvedModel(Path(path), _UNKNOWN, _UNKNOWN, head_size=0, n_layers=0, n_kv_heads=0, window=2**31)

    def task(self, name: str, options: Mapping[str, Any]) -> Task:
        """The task with as many empty problems as it has."""
        task = registry.get(name, **options)
        return _Outlined(name, problem_count(task), task.samples_default, task.expected_tokens)

    def render(self, model: ResolvedModel, problems: Sequence[Problem]) -> tuple[Rendered, ...]:
        """Prompts of a short length, all alike."""
        return (_PROMPT,) * len(problems)


@dataclass(frozen=True)
class _Outlined:
    name: str
    size: int
    samples_default: int
    expected_tokens: int
    version: int = 0
    revision: str = _UNKNOWN
    prompt_hash: str = _UNKNOWN
    grader: str = _UNKNOWN
    grader_version: int = 0
    licence: str = _UNKNOWN

    def problems(self, limit: int | None = None) -> Sequence[Problem]:
        count = self.size if limit is None else min(limit, self.size)
        return [Problem(f"{index}", (), "") for index in range(count)]

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        raise NotImplementedError("an outline holds no problems")
