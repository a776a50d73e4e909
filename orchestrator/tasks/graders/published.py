"""The rules by which the paper's accuracies were judged, for `protocol: published` and nothing else.

Facts from the authors' repository (kvcompress/eval/grader.py and its VaSE parser): the answer is what follows the last
"boxed" of the whole text, unfinished thoughts included; units are dropped; numbers agree within 1e-4, also when one is
100 times the other; lists agree in any order; algebra decides the rest. It forgives more than our rules do, on purpose.
"""

from __future__ import annotations

import re
import time

from orchestrator.tasks.base import Grade, Verdict
from orchestrator.tasks.graders.answers import FINISHED, last_box, until_stop
from orchestrator.tasks.graders.latex import bracketed, compact, depth, normalise, split
from orchestrator.tasks.graders.math import EXPLOSIVE, MAX_DEPTH, MAX_LENGTH
from orchestrator.tasks.graders.symbolic import CHECKER, SymbolicTimeout
from orchestrator.tasks.graders.values import number

TOLERANCE = 1e-4
_WORDS = re.compile(r"\\text\{[^{}]*\}|\\?%|\^\\circ|\\\$")


def grade(gold: str, text: str, finish_reason: str) -> Grade:
    """One reading only, so the lenient verdict is the verdict; a thought that was cut off may hold the answer."""
    started = time.perf_counter()
    if finish_reason not in FINISHED:
        return Grade(Verdict.ERROR, None, f"finish_reason {finish_reason}", 0.0, Verdict.ERROR)
    answer = _answer(until_stop(text))
    if answer is None:
        verdict = Verdict.TRUNCATED if finish_reason == "length" else Verdict.NO_ANSWER
        return Grade(verdict, None, "nothing to extract", time.perf_counter() - started, verdict)
    try:
        verdict = Verdict.CORRECT if equal(gold, answer) else Verdict.WRONG
        method = "published"
    except SymbolicTimeout as error:
        verdict, method = Verdict.WRONG, f"published, symbolic: {error}"
    return Grade(verdict, answer, method, time.perf_counter() - started, verdict)


def _answer(text: str) -> str | None:
    """The last box; without braces what stands between "boxed" and the next dollar or line end."""
    _, found, tail = text.rpartition("boxed")
    if not found:
        return None
    if tail.lstrip().startswith("{"):
        return last_box(text)
    return re.split(r"[$\n]", tail, maxsplit=1)[0].strip() or None


def equal(gold: str, answer: str) -> bool:
    """Raises SymbolicTimeout."""
    a, b = (_bare(text) for text in (gold, answer))
    if compact(a).casefold() == compact(b).casefold():
        return True
    if (near := _near(a, b)) is not None:
        return near
    parts = [_parts(text) for text in (a, b)]
    if len(parts[0]) != len(parts[1]):
        return False
    if len(parts[0]) > 1:
        return _any_order(parts[0], parts[1])
    if max(len(a), len(b)) > MAX_LENGTH or depth(b) > MAX_DEPTH or EXPLOSIVE.search(b):
        return False
    return CHECKER.equal(a, b)


def _bare(text: str) -> str:
    """Without units, currency, percent and degree signs, and without `x =` before a value."""
    text = normalise(text)
    stripped = _WORDS.sub(" ", text).strip()
    text = stripped or re.sub(r"\\text\{([^{}]*)\}", r"\1", text).strip()
    return normalise(re.sub(r"^[a-zA-Z](?:\([a-z]\))?\s*=\s*", "", text))


def _near(gold: str, answer: str) -> bool | None:
    wanted, given = number(gold), number(answer)
    if wanted is None or given is None:
        return None
    return any(
        abs(float(value) - float(given[0])) <= TOLERANCE for value in (wanted[0], wanted[0] / 100, wanted[0] * 100)
    )


def _parts(text: str) -> list[str]:
    inside = bracketed(text)
    found = split(inside[1] if inside else text, ",")
    return found if len(found) > 1 else [text]


def _any_order(wanted: list[str], given: list[str]) -> bool:
    left = list(given)
    for item in wanted:
        hit = next((other for other in left if equal(item, other)), None)
        if hit is None:
            return False
        left.remove(hit)
    return True
