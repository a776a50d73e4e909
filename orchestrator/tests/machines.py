"""A machine for expansion tests: the real tasks, any model path, and a tokenizer of one token per character."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import models
from orchestrator.errors import UserError
from orchestrator.models import ResolvedModel
from orchestrator.prompts import Rendered
from orchestrator.tasks import registry
from orchestrator.tasks.base import Problem, Task

JOB = """\
name: test
models: [{{path: embedded:reasoner, max_model_len: 2048}}]
tasks: [{{name: reasoner_w, limit: 16}}]
arms: {arms}
samples: {samples}
sampling: {{temperature: 0.6, max_tokens: {max_tokens}}}
{more}
"""


def job_text(
    arms: str = "{policies: [full, random], keep: 264, interval: 16}",
    samples: int | str = 1,
    max_tokens: int = 1500,
    more: str = "",
) -> str:
    """A job file with the parts that expansion tests vary."""
    return JOB.format(arms=arms, samples=samples, max_tokens=max_tokens, more=more)


@dataclass(frozen=True)
class Machine:
    """Resources on which every model has the reasoner's shape; `absent` paths are not there."""

    window: int = 4096
    absent: frozenset[str] = frozenset()

    def model(self, path: str, revision: str | None) -> ResolvedModel:
        """As Resources.model."""
        if path in self.absent:
            raise UserError(f"no model at '{path}'.")
        found = models.resolve("embedded:reasoner")
        return replace(found, revision=revision or f"rev-{path}", window=self.window, notes=())

    def task(self, name: str, options: Mapping[str, Any]) -> Task:
        """As Resources.task."""
        return registry.get(name, **options)

    def render(self, model: ResolvedModel, problems: Sequence[Problem]) -> tuple[Rendered, ...]:
        """As Resources.render."""
        return tuple(_rendered(problem) for problem in problems)


def _rendered(problem: Problem) -> Rendered:
    text = problem.messages[-1]["content"]
    return Rendered(text, tuple(map(ord, text)), hashlib.sha256(text.encode()).hexdigest())
