"""`evictbench verify graders FILE`: grade every case of a file and compare with the verdict it wants.

A file is a list of {"id", "task" or "grader", "gold", "response", "expected": bool}; optional are "finish_reason"
("stop" without it) and "policy" (the wanted verdict is a convention). A task or grader unknown here is a failure,
never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.errors import UserError
from orchestrator.tasks import registry
from orchestrator.tasks.base import Grade, Verdict
from orchestrator.tasks.graders import integers, letters, math, plain

Rule = Callable[[str, str, str], Grade]
GRADERS: Mapping[str, Rule] = {
    "digits": plain.digits,
    "exact": plain.exact,
    "integer": integers.grade,
    "letter": letters.grade,
    "math": math.grade,
    "number": plain.number,
}


def check(cases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str | None]]:
    """One (case id, None or what is wrong) per case, in file order."""
    for number, case in enumerate(cases, 1):
        name = str(case.get("id", f"case {number}"))
        try:
            grade = _rule(case)(str(case["gold"]), str(case["response"]), str(case.get("finish_reason", "stop")))
            yield name, _problem(case, grade)
        except (KeyError, UserError) as error:
            yield name, f"not a case of this format: {type(error).__name__}: {error}"


def _rule(case: Mapping[str, Any]) -> Rule:
    if "grader" in case:
        return GRADERS[case["grader"]]
    task = str(case["task"])
    # short names in circulation stand for the set that they are part of
    names = [name for name in registry.names() if name == task or name.startswith(f"{task}_")]
    if not names:
        raise UserError(f"unknown task '{task}'")
    return GRADERS[registry.grader(names[0])]


def _problem(case: Mapping[str, Any], grade: Grade) -> str | None:
    if (grade.verdict is Verdict.CORRECT) == bool(case["expected"]):
        return None
    wanted = "correct" if case["expected"] else "not correct"
    note = " (a convention)" if case.get("policy") else ""
    found = f"found {grade.extracted!r} for gold {case['gold']!r}"
    return f"wanted {wanted}{note}, got {grade.verdict} by {grade.method}: {found}"
