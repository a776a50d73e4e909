"""Integer answers (AIME and its like): the box must come down to one integer; no algebra."""

from __future__ import annotations

import re

from orchestrator.tasks.base import Grade
from orchestrator.tasks.graders.answers import grade_answer, last_box
from orchestrator.tasks.graders.latex import normalise

VERSION = 1
_INTEGER = re.compile(r"([-+]?)\s*(\d+|\d{1,3}(?:,\d{3})+)")


def grade(gold: str, text: str, finish_reason: str) -> Grade:
    """Compare as integers: leading zeros, one `=`, an arrow, units and degree signs are understood, nothing else is."""
    wanted = parse(gold)

    def judge(answer: str) -> tuple[bool, str]:
        value = parse(answer)
        return (False, "not an integer") if value is None else (value == wanted, "integer")

    return grade_answer(text, finish_reason, last_box, judge)


def parse(answer: str) -> int | None:
    """The integer that an answer comes down to, or None."""
    text = re.split(r"=|\\Rightarrow|\\rightarrow|\\approx|\\equiv", normalise(answer))[-1]
    text = re.sub(r"(?<=\d)\s+[a-zA-Z]{2,}[a-zA-Z ]*$", "", text.strip())
    text = re.sub(r"\\text\{[^{}]*\}|\^\\circ|\\?%|\\\$|[\s{}]", "", text)
    match = _INTEGER.fullmatch(text.rstrip("."))
    if match is None or len(text) > 1000:
        return None
    value = int(match[2].replace(",", ""))
    return -value if match[1] == "-" else value
