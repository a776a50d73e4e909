"""Judges: every test of a problem must pass. Which rules apply is the judge's name.

process     a real process a test on standard input, one in all for functions; wanted outputs never enter the sandbox
published   the same with the limits and the tolerance of the paper's harness
lcb-compat  LiveCodeBench's own mock of standard input, inside the sandbox, for numbers that others published

Exit statuses set by `sys.exit` are ignored, as the official judge does; an exception that escapes is a failure even
after right output.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.tasks.code import extract, sandbox
from orchestrator.tasks.code.cases import Case, Item
from orchestrator.tasks.code.checker import same_output, same_value
from orchestrator.tasks.code.sandbox import Ended, Level, Limits
from orchestrator.tasks.code.turnstile import running

SIGXCPU = 24
SIGKILL = 9
COMPAT_RUNNER = "compat_runner.py"
LIMITS = Limits()
_MEMORY = (b"MemoryError", b"Cannot allocate memory", b"out of memory")


class Status(StrEnum):
    """How a program fared over all tests: the first failure, or pass."""

    PASS = "pass"
    WRONG_ANSWER = "wrong_answer"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    RUNTIME_ERROR = "runtime_error"
    NO_CODE = "no_code"


@dataclass(frozen=True, slots=True)
class Judged:
    """Status, number of the first failed test (from 1; 0 when none), sandbox level, whether a retry changed it."""

    status: Status
    test: int
    level: str
    flipped: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """A judge: its limits, how it finds the program in a text, how close numbers must be, whether it mocks."""

    limits: Limits = LIMITS
    extract: Callable[[str, str], str] = extract.program
    tolerance: float = 0.0
    compat: bool = False


JUDGES = {
    "process": Rules(),
    "lcb-compat": Rules(extract=extract.official, compat=True),
    "published": Rules(
        Limits(cpu_seconds=20, wall_seconds=20.0, memory_bytes=4 * 1024**3), extract.anywhere, tolerance=1e-6
    ),
}
PROCESS = JUDGES["process"]


def judge(code: str, item: Item, rules: Rules = PROCESS, *, at: Level | None = None) -> Judged:
    """Run a program on its tests; a time limit is tried once more alone. Raises sandbox.Unavailable."""
    level = at or sandbox.level()
    if not code.strip():
        return Judged(Status.NO_CODE, 0, level.name)
    with running():
        first = _once(code, item, rules, level)
    if first.status is not Status.TIME_LIMIT:
        return first
    # State of a function persists from test to test, so only programs can go on where they were late.
    done = 0 if item.function or rules.compat else first.test - 1
    with running(alone=True):
        again = _once(code, replace(item, cases=item.cases[done:]), rules, level)
    again = replace(again, test=again.test + done if again.test else 0)
    return replace(again, flipped=again.status is not first.status)


def _once(code: str, item: Item, rules: Rules, level: Level) -> Judged:
    run = _compat if rules.compat else _function if item.function else _program
    for number, status in enumerate(run(code, item, rules, level), 1):
        if status is not Status.PASS:
            return Judged(status, number, level.name)
    return Judged(Status.PASS, 0, level.name)


def _program(code: str, item: Item, rules: Rules, level: Level) -> list[Status]:
    statuses = []
    for case in item.cases:
        ended = sandbox.run(code, case.input.encode(), rules.limits, level)
        statuses.append(_status(ended, case, rules.tolerance))
        if statuses[-1] is not Status.PASS:
            break
    return statuses


def _status(ended: Ended, case: Case, tolerance: float) -> Status:
    if ended.too_much:
        return Status.OUTPUT_LIMIT
    if ended.status is None or _killed_by(ended.status, SIGXCPU):
        return Status.TIME_LIMIT
    if ended.status != 0:
        if ended.out_of_memory or any(mark in ended.errors for mark in _MEMORY):
            return Status.MEMORY_LIMIT
        # SIGKILL: the hard CPU limit, one second above the soft one
        return Status.TIME_LIMIT if _killed_by(ended.status, SIGKILL) else Status.RUNTIME_ERROR
    right = same_output(ended.output.decode("utf-8", "replace"), case.output, tolerance)
    return Status.PASS if right else Status.WRONG_ANSWER


def _killed_by(status: int, number: int) -> bool:
    return status in (-number, 128 + number)


def _function(code: str, item: Item, rules: Rules, level: Level) -> list[Status]:
    process = sandbox.start(code, (item.function,), rules.limits, level)
    statuses: list[Status] = []
    try:
        for case in item.cases:
            request = json.dumps({"input": case.input}).encode() + b"\n"
            reply = sandbox.ask(process, request, rules.limits.wall_seconds)
            statuses.append(_value_status(process, reply, case, rules.tolerance))
            if statuses[-1] is not Status.PASS:
                break
    finally:
        process.close()
    return statuses


def _value_status(process: sandbox.Process, reply: bytes | None, case: Case, tolerance: float) -> Status:
    if not reply:
        if process.group is not None and process.group.out_of_memory():
            return Status.MEMORY_LIMIT
        late = reply is None or any(_killed_by(process.status(), number) for number in (SIGXCPU, SIGKILL))
        return Status.TIME_LIMIT if late else Status.RUNTIME_ERROR
    try:
        answer = json.loads(reply)
        if "result" not in answer:
            return Status.MEMORY_LIMIT if answer["error"] == "MemoryError" else Status.RUNTIME_ERROR
        right = same_value(answer["result"], json.loads(case.output), tolerance)
    except (ValueError, KeyError, TypeError):
        return Status.RUNTIME_ERROR  # the program wrote on the reply channel itself
    return Status.PASS if right else Status.WRONG_ANSWER


def _compat(code: str, item: Item, rules: Rules, level: Level) -> list[Status]:
    """All tests in one mocked process; one that ends without a reply failed, as the official judge counts it."""
    seconds = rules.limits.cpu_seconds
    budget = (seconds + 1) * len(item.cases) + 5
    # its own alarms decide: the CPU limit is only the backstop for what ignores them
    limits = replace(rules.limits, cpu_seconds=budget, wall_seconds=float(budget))
    process = sandbox.start(code, (item.function, str(seconds)), limits, level, runner=COMPAT_RUNNER)
    try:
        tests = json.dumps({"tests": [[case.input, case.output] for case in item.cases]}).encode() + b"\n"
        reply = sandbox.ask(process, tests, limits.wall_seconds)
    finally:
        process.close()
    if not reply:
        return [Status.TIME_LIMIT if reply is None else Status.RUNTIME_ERROR]
    try:
        codes = json.loads(reply)
        return [_COMPAT[code] for code in codes] if len(codes) else [Status.RUNTIME_ERROR]
    except (ValueError, KeyError, TypeError):
        return [Status.RUNTIME_ERROR]


_COMPAT = {True: Status.PASS, -2: Status.WRONG_ANSWER, -3: Status.TIME_LIMIT, -4: Status.RUNTIME_ERROR}
