"""LiveCodeBench v6, medium: 383 programs, graded by running them on public and private tests.

`release_v6` is the whole set of 1,055; the hub's configuration `v6` is only its newest 175 and is not this set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from orchestrator.cells import fingerprint
from orchestrator.errors import UserError
from orchestrator.tasks.base import Grade, Problem, Verdict
from orchestrator.tasks.benchmark import Benchmark, Source, content_id, text_field
from orchestrator.tasks.code import cases, sandbox
from orchestrator.tasks.code.extract import anywhere
from orchestrator.tasks.code.judge import JUDGES, Rules, Status, judge
from orchestrator.tasks.code.sandbox import UNSAFE, Level, Unavailable
from orchestrator.tasks.graders.answers import FINISHED
from orchestrator.tasks.registry import register

DIFFICULTY = "medium"
_COMMIT = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
_FILES = {
    "test.jsonl": "2bd02b38beb48e8c46b5b9987095d999ff38cd8efc255ea5d58974317c48f63f",
    "test2.jsonl": "095df7c5daf15f882c51a9deb84085cff1e073495a5dbcf95015a564d485f3a3",
    "test3.jsonl": "28ed26cc83363ce3f1fe2d5fad9f8393077beb1907b167a31bd3b32f80801b79",
    "test4.jsonl": "d711138ddaebfcf5f8ec6a4283ee677298c0f5c5d374a235af92aaf0584510da",
    "test5.jsonl": "7f77571c2a6df0c2a72a3277650309f67e01e0008e18117e624633df53f81214",
    "test6.jsonl": "bb4c364f71921c4495a6ad15abe1a927350b720009f4933e2e71f8af0f6fd1f5",
}
_STDIN = (
    "Read the inputs from stdin, solve the problem and write the answer to stdout.\n```python\n# YOUR CODE HERE\n```"
)
_STARTER = "Use this starter code, and put your whole program into one Python code block.\n```python\n{starter}\n```"


@register
@dataclass(frozen=True)
class LiveCodeBench(Benchmark):
    """Published at keep 3072 with 4 samples a problem. Expects the hub's fields; other difficulties are left out.

    Options: `judge` (process, lcb-compat, published), `allow_unsafe` (run programs without walls where none work here).
    """

    judge: str = "process"
    allow_unsafe: bool = False

    name: ClassVar[str] = "livecodebench"
    sources = tuple(
        Source("livecodebench/code_generation_lite", file, "release_v6", "test", _COMMIT, digest)
        for file, digest in _FILES.items()
    )
    grader: ClassVar[str] = "program"
    grader_version: ClassVar[int] = 3
    judges: ClassVar[tuple[str, ...]] = tuple(JUDGES)
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

    def ready(self) -> None:
        """Raises UserError where this machine cannot run programs safely."""
        try:
            self._level()
        except Unavailable as error:
            raise UserError(f"task '{self.name}': {error}") from error

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        """Runs the program; the method names status, failed test and sandbox level."""
        started = time.perf_counter()
        if finish_reason not in FINISHED:
            return Grade(Verdict.ERROR, None, f"finish_reason {finish_reason}", 0.0, Verdict.ERROR)
        rules = JUDGES[self.judge]
        code = rules.extract(text, finish_reason)
        if code.strip():
            verdict, method = self._run(code, problem, rules)
            lenient = verdict
        else:
            verdict = lenient = Verdict.TRUNCATED if finish_reason == "length" else Verdict.NO_ANSWER
            method = Status.NO_CODE.value
            if hidden := anywhere(text):
                lenient = self._run(hidden, problem, rules)[0]
        return Grade(verdict, code or None, method, time.perf_counter() - started, lenient)

    def _run(self, code: str, problem: Problem, rules: Rules) -> tuple[Verdict, str]:
        try:
            judged = judge(code, cases.item(problem.meta["tests"]), rules, at=self._level())
        except Unavailable as error:
            return Verdict.ERROR, f"sandbox: {error}"
        flipped = ", flipped" if judged.flipped else ""
        method = f"{judged.status.value} at test {judged.test} ({judged.level}{flipped})"
        return (Verdict.CORRECT if judged.status is Status.PASS else Verdict.WRONG), method

    def _level(self) -> Level:
        try:
            return sandbox.level()
        except Unavailable:
            if not self.allow_unsafe:
                raise
            return UNSAFE
