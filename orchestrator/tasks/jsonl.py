"""A user's own problems: one JSON object per line, in the order of the file (contracts.md section 4).

Appending lines is growing. A problem is named by its content without the answer, so a gold answer can be mended and
regraded; a changed earlier line is another problem and is refused wherever rows of the old one exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.cells import canonical_json, fingerprint
from orchestrator.errors import UserError, closest
from orchestrator.tasks.base import Grade, Problem
from orchestrator.tasks.graders import plain
from orchestrator.tasks.registry import register

GRADERS: Mapping[str, Callable[[str, str, str], Grade]] = {"exact": plain.exact, "number": plain.number}


@register
@dataclass(frozen=True)
class Jsonl:
    r"""Options of a task read from a file.

    path         the file, relative to the job file
    grader       "exact" (text of the last box, else the whole answer) or "number" (exact value of it)
    label        name of the problem set in every row; file name without its ending when empty
    problem      field that holds the question
    answer       field that holds the gold answer
    instruction  text put behind every question, such as "Put your final answer within \boxed{}."
    tokens       expected length of an answer in tokens, for planning only
    """

    path: str = field(metadata={"path": True})
    grader: str = "exact"
    label: str = ""
    problem: str = "problem"
    answer: str = "answer"
    instruction: str = ""
    tokens: int = 1024

    name: ClassVar[str] = "jsonl"
    version: ClassVar[int] = 1
    growing: ClassVar[bool] = True  # the last short block waits for more lines
    grader_version: ClassVar[int] = 2
    samples_default: ClassVar[int] = 1
    licence: ClassVar[str] = "the user's own"

    def __post_init__(self) -> None:
        if self.grader not in GRADERS:
            known = ", ".join(GRADERS)
            hint = closest(str(self.grader), GRADERS)
            raise UserError(f"task 'jsonl': grader '{self.grader}' is unknown; choose from {known}.{hint}")

    def __getstate__(self) -> dict[str, Any]:
        """Options only: a task travels to graders with every work."""
        return {key: value for key, value in self.__dict__.items() if key != "_items"}

    @property
    def revision(self) -> str:
        """The label: lines may be appended, and `refuse_changes` guards the earlier ones."""
        return f"file-{self.label or Path(self.path).stem}"

    @property
    def prompt_hash(self) -> str:
        return fingerprint({"problem": self.problem, "instruction": self.instruction})

    @property
    def expected_tokens(self) -> int:
        return self.tokens

    @property
    def size(self) -> int:
        """Number of problems in the file. Raises UserError as `problems` does."""
        return len(self._items)

    def problems(self, limit: int | None = None) -> Sequence[Problem]:
        """In file order. Raises UserError: unreadable file, broken line, missing field, duplicate, bad gold."""
        return self._items[:limit]

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        """By the rule that the option `grader` names."""
        return GRADERS[self.grader](problem.gold, text, finish_reason)

    def refuse_changes(self, stored: Mapping[int, str]) -> None:
        """`stored`: problem index -> problem id as a store has them. Raises UserError naming the first changed line."""
        for index, problem_id in sorted(stored.items()):
            line = self._items[index].meta["line"] if index < len(self._items) else None
            if line is not None and self._items[index].problem_id == problem_id:
                continue
            what = f"line {line} of {self.path} has changed" if line else f"problem {index + 1} of {self.path} is gone"
            raise UserError(
                f"{what} since rows were stored for it as '{self.revision}'. Only appending is allowed: restore the "
                "line, or give the changed set its own name with `label: NAME` beside the task."
            )

    @cached_property
    def _items(self) -> tuple[Problem, ...]:
        items = tuple(self._read())
        if not items:
            raise UserError(
                f"{self.path} holds no problem; write one JSON object per line with the field "
                f"'{self.problem}' and '{self.answer}'."
            )
        first_lines: dict[str, int] = {}
        for item in items:
            line = item.meta["line"]
            earlier = first_lines.setdefault(item.problem_id, line)
            if earlier != line:
                raise UserError(f"{self.path}: line {line} repeats the problem of line {earlier}; remove one of them.")
        self._refuse_golds(items)
        return items

    def _read(self) -> Sequence[Problem]:
        try:
            lines = Path(self.path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"task 'jsonl': cannot read {self.path}: {error}. Give `path:` relative to the job file."
            ) from error
        return [self._problem(line, number) for number, line in enumerate(lines, 1) if line.strip()]

    def _problem(self, line: str, number: int) -> Problem:
        place = f"{self.path} line {number}"
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{place} is not JSON ({error.msg} at column {error.colno}).") from error
        if not isinstance(item, dict):
            raise UserError(
                f"{place} holds a {type(item).__name__}; each line must be an object such as "
                f'{{"{self.problem}": "2+2?", "{self.answer}": "4"}}.'
            )
        question = self._text(item, self.problem, place)
        gold = self._text(item, self.answer, place)
        content = f"{question}\n{self.instruction}" if self.instruction else question
        return Problem(problem_id(item, self.answer), ({"role": "user", "content": content},), gold, {"line": number})

    def _text(self, item: Mapping[str, Any], key: str, place: str) -> str:
        if key not in item:
            listed = ", ".join(item) or "none"
            raise UserError(f"{place} has no field '{key}'; its fields: {listed}.{closest(key, item)}")
        value = item[key]
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise UserError(f"{place}: field '{key}' is {json.dumps(value)}; it must be a text or a number.")
        return str(value)

    def _refuse_golds(self, items: Sequence[Problem]) -> None:
        if self.grader != "number":
            return
        bad = [f"line {item.meta['line']}: {item.gold!r}" for item in items if plain.parse_number(item.gold) is None]
        if bad:
            shown = "; ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
            raise UserError(
                f"{self.path}: grader 'number' cannot read these answers: {shown}. Mend them or choose grader 'exact'."
            )


def problem_id(item: Mapping[str, Any], answer_field: str) -> str:
    """16 hex of BLAKE2b over the item's canonical JSON without its answer."""
    content = {key: value for key, value in item.items() if key != answer_field}
    return hashlib.blake2b(canonical_json(content).encode(), digest_size=8).hexdigest()
