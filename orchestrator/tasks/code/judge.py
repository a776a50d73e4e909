"""The process judge: every test must pass; programs over standard input get a process a test, functions one in all.

Exit statuses set by `sys.exit` are ignored, as the official judge does; an exception that escapes is a failure even
after right output. Wanted outputs never enter the sandbox.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.tasks.code import sandbox
from orchestrator.tasks.code.cases import Case, Item
from orchestrator.tasks.code.checker import same_output, same_value
from orchestrator.tasks.code.sandbox import Ended, Limits

SIGXCPU = 24
SIGKILL = 9
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


def judge(code: str, item: Item, limits: Limits | None = None) -> Judged:
    """Run a program on its tests; a time limit is tried once more alone. Raises sandbox.Unavailable."""
    limits = limits or Limits()
    level = sandbox.level()
    if not code.strip():
        return Judged(Status.NO_CODE, 0, level)
    first = _once(code, item, limits, level)
    if first.status is not Status.TIME_LIMIT:
        return first
    again = _once(code, item, limits, level)
    return replace(again, flipped=again.status is not first.status)


def _once(code: str, item: Item, limits: Limits, level: str) -> Judged:
    statuses = _function(code, item, limits, level) if item.function else _program(code, item, limits, level)
    for number, status in enumerate(statuses, 1):
        if status is not Status.PASS:
            return Judged(status, number, level)
    return Judged(Status.PASS, 0, level)


def _program(code: str, item: Item, limits: Limits, level: str) -> list[Status]:
    statuses = []
    for case in item.cases:
        ended = sandbox.run(code, case.input.encode(), limits, level)
        statuses.append(_status(ended, case))
        if statuses[-1] is not Status.PASS:
            break
    return statuses


def _status(ended: Ended, case: Case) -> Status:
    if ended.too_much:
        return Status.OUTPUT_LIMIT
    if ended.status is None or _killed_by(ended.status, SIGXCPU):
        return Status.TIME_LIMIT
    if ended.status != 0:
        memory = any(mark in ended.errors for mark in _MEMORY)
        if _killed_by(ended.status, SIGKILL):
            return Status.TIME_LIMIT  # the hard CPU limit, one second above the soft one
        return Status.MEMORY_LIMIT if memory else Status.RUNTIME_ERROR
    right = same_output(ended.output.decode("utf-8", "replace"), case.output)
    return Status.PASS if right else Status.WRONG_ANSWER


def _killed_by(status: int, number: int) -> bool:
    return status in (-number, 128 + number)


def _function(code: str, item: Item, limits: Limits, level: str) -> list[Status]:
    process = sandbox.start(code, item.function, limits, level)
    statuses: list[Status] = []
    try:
        for case in item.cases:
            request = json.dumps({"input": case.input}).encode() + b"\n"
            reply = sandbox.ask(process, request, limits.wall_seconds)
            statuses.append(_value_status(process, reply, case))
            if statuses[-1] is not Status.PASS:
                break
    finally:
        process.close()
    return statuses


def _value_status(process: sandbox.Process, reply: bytes | None, case: Case) -> Status:
    if not reply:
        late = reply is None or any(_killed_by(process.status(), number) for number in (SIGXCPU, SIGKILL))
        return Status.TIME_LIMIT if late else Status.RUNTIME_ERROR
    try:
        answer = json.loads(reply)
        if "result" not in answer:
            return Status.MEMORY_LIMIT if answer["error"] == "MemoryError" else Status.RUNTIME_ERROR
        right = same_value(answer["result"], json.loads(case.output))
    except (ValueError, KeyError, TypeError):
        return Status.RUNTIME_ERROR  # the program wrote on the reply channel itself
    return Status.PASS if right else Status.WRONG_ANSWER
