"""Integer answers (AIME and its like): the box must come down to one integer; no algebra."""

from __future__ import annotations

import re

from orchestrator.tasks.base import Grade
from orchestrator.tasks.graders.answers import grade_answer, last_box, unboxed
from orchestrator.tasks.graders.latex import compact, normalise

VERSION = 3
# the problems ask for remainders, and some answers repeat the modulus
_MODULUS = re.compile(
    r"\\pmod\s*\{?\s*\d+\s*\}?\s*$|\\bmod\s*\{?\s*\d+\s*\}?\s*$|(?:\\text\{\s*)?\(\s*\\?(?:mod\s*\}?|text\{mod\s*\})\s*\d+\s*\)\s*$"
)
_INTEGER = re.compile(r"([-+]?)\s*(\d+|\d{1,3}(?:,\d{3})+)")


def grade(gold: str, text: str, finish_reason: str) -> Grade:
    """Compare as integers: leading zeros, one `=`, an arrow, units and degree signs are understood, nothing else is."""
    wanted = parse(gold)

    def judge(answer: str) -> tuple[bool, str]:
        value = parse(answer)
        return (False, "not an integer") if value is None else (value == wanted, "integer")

    return grade_answer(text, finish_reason, _find, judge)


def _find(part: str) -> str | None:
    boxed = last_box(part)
    return unboxed(part) if boxed is None else boxed


def parse(answer: str) -> int | None:
    """The integer that an answer comes down to, or None."""
    text = _MODULUS.sub("", normalise(answer))
    text = re.split(r"=|\\Rightarrow|\\rightarrow|\\approx|\\equiv", text)[-1]
    text = re.sub(r"(?<=\d)\s+[a-zA-Z]{2,}[a-zA-Z ]*$", "", text.strip())
    # a number that is nothing but formatted words, as in \textbf{(70)}
    text = re.sub(r"^\\text\{\s*(\(?[-+]?[\d,]+\)?)\s*\}$", r"\1", text)
    text = re.sub(r"\\text\{[^{}]*\}|\^\\circ|\\?%|\\\$|[{}]", "", text).strip()
    if re.fullmatch(r"[-+]?\d{1,3}(?: \d{3})+", text) or not re.search(r"\d\s+\d", text):
        text = compact(text)
    text = re.sub(r"^\((.*)\)$", r"\1", text.rstrip("."))
    match = _INTEGER.fullmatch(re.sub(r"\.0+$", "", text))
    if match is None or len(text) > 1000:
        return None
    value = int(match[2].replace(",", ""))
    return -value if match[1] == "-" else value
