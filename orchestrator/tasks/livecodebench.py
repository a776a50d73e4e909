"""LiveCodeBench v6, medium: 383 programs, graded by running them on public and private tests.

`release_v6` is the whole set of 1,055; the hub's configuration `v6` is only its newest 175 and is not this set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from orchestrator.cells import fingerprint
from orchestrator.tasks.base import Grade, Problem, Verdict
from orchestrator.tasks.benchmark import Benchmark, Source, content_id, text_field
from orchestrator.tasks.code import cases
from orchestrator.tasks.code.extract import program
from orchestrator.tasks.code.judge import Status, judge
from orchestrator.tasks.code.sandbox import Unavailable
from orchestrator.tasks.graders.answers import FINISHED
from orchestrator.tasks.registry import register

DIFFICULTY = "medium"
_STDIN = (
    "Read the inputs from stdin, solve the problem and write the answer to stdout.\n```python\n# YOUR CODE HERE\n```"
)
_STARTER = "Use this starter code, and put your whole program into one Python code block.\n```python\n{starter}\n```"


@register
@dataclass(frozen=True)
class LiveCodeBench(Benchmark):
    """Published at keep 3072 with 4 samples a problem. Expects the hub's fields; other difficulties are left out."""

    name: ClassVar[str] = "livecodebench"
    sources = tuple(
        Source("livecodebench/code_generation_lite", file, "release_v6", "test")
        for file in ("test.jsonl", *(f"test{n}.jsonl" for n in range(2, 7)))
    )
    grader: ClassVar[str] = "program"
    grader_version: ClassVar[int] = 1
    instruction: ClassVar[str] = f"{_STDIN}|{_STARTER}"
    samples_default: ClassVar[int] = 4
    keep_published: ClassVar[int | None] = 3072
    count: ClassVar[int] = 383
    expected_tokens: ClassVar[int] = 12288
    licence: ClassVar[str] = "'cc' on the card, no version named; texts belong to the contest sites; never packaged"

    def kept(self, row: Mapping[str, Any]) -> bool:
        return row.get("difficulty") == DIFFICULTY

    def item(self, row: Mapping[str, Any], place: str) -> Problem:
        question = text_field(row, "question_content", place)
        starter = str(row.get("starter_code") or "")
        form = _STARTER.format(starter=starter) if starter else _STDIN
        tests = {key: row.get(key) for key in ("question_id", "public_test_cases", "private_test_cases", "metadata")}
        messages = ({"role": "user", "content": f"{question}\n\n{form}"},)
        # packed tests are kept as they came and opened when a program is judged: opened, the set takes gigabytes
        return Problem(content_id(question + starter), messages, fingerprint(tests), {"tests": tests})

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        """Runs the program; the method names status, failed test and sandbox level."""
        started = time.perf_counter()
        verdict, code, method = self._judge(problem, text, finish_reason)
        return Grade(verdict, code, method, time.perf_counter() - started)

    def _judge(self, problem: Problem, text: str, finish_reason: str) -> tuple[Verdict, str | None, str]:
        if finish_reason not in FINISHED:
            return Verdict.ERROR, None, f"finish_reason {finish_reason}"
        code = program(text, finish_reason)
        if not code.strip():
            return (Verdict.TRUNCATED if finish_reason == "length" else Verdict.NO_ANSWER), None, Status.NO_CODE.value
        try:
            judged = judge(code, cases.item(problem.meta["tests"]))
        except Unavailable as error:
            return Verdict.ERROR, code, f"sandbox: {error}"
        flipped = ", flipped" if judged.flipped else ""
        method = f"{judged.status.value} at test {judged.test} ({judged.level}{flipped})"
        return (Verdict.CORRECT if judged.status is Status.PASS else Verdict.WRONG), code, method
