"""What a task is: problems with gold answers, a prompt, and a grader (contracts.md section 4).

Standard library only: planners, graders and the dashboard share these values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Message = Mapping[str, str]


class Verdict(StrEnum):
    """What a grader says of one generation. Only `correct` counts as right; `ungraded` is not `wrong`.

    no_answer  the model stopped without giving an answer
    truncated  the model ran into max_tokens before an answer
    error      no usable generation, or the grader failed on it
    """

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    ERROR = "error"
    UNGRADED = "ungraded"


@dataclass(frozen=True, slots=True)
class Grade:
    """One verdict. `extracted` is the answer as found in the text, `method` the rule that decided, wall `seconds`.

    lenient  the verdict if the whole text counted, unfinished thoughts included; None where no reading is lenient
    """

    verdict: Verdict
    extracted: str | None
    method: str
    seconds: float
    lenient: Verdict | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One item in the task's pinned order. The gold answer never travels to an engine."""

    problem_id: str
    messages: tuple[Message, ...]
    gold: str
    meta: Mapping[str, Any] = field(default_factory=dict)


class Task(Protocol):
    """A pinned problem set with its prompt and grader. Implementations are frozen dataclasses; fields = options.

    name, version      identity; raise `version` when rendering or problem order changes
    revision           pins the problem contents
    prompt_hash        pins the template that turns an item into messages
    grader             name of the grading rule; grades are stored under grader and grader_version
    samples_default    samples per problem when the job names none
    size               number of problems; None where the generator has no end
    expected_tokens    generated tokens of one full-cache answer on average, for planning only
    licence            licence note of the problem texts
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def revision(self) -> str: ...
    @property
    def prompt_hash(self) -> str: ...
    @property
    def grader(self) -> str: ...
    @property
    def grader_version(self) -> int: ...
    @property
    def samples_default(self) -> int: ...
    @property
    def size(self) -> int | None: ...
    @property
    def expected_tokens(self) -> int: ...
    @property
    def licence(self) -> str: ...

    def problems(self, limit: int | None = None) -> Sequence[Problem]:
        """First `limit` problems in the pinned order (all, or a default number, when None). Raises UserError."""

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        """Pure: same arguments, same verdict. `finish_reason` as in workers.api.Generation. Never raises."""
