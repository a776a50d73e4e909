"""Graders without algebra: digits, exact text, one number."""

from __future__ import annotations

import re
from fractions import Fraction

from orchestrator.tasks.base import Grade
from orchestrator.tasks.graders.answers import grade_answer, last_box
from orchestrator.tasks.graders.latex import normalise
from orchestrator.tasks.graders.values import quantity

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?|[-+]?\.\d+")


def digits(gold: str, text: str, finish_reason: str) -> Grade:
    """The last box must hold exactly the gold digits, leading zeros included, behind a closed thought."""
    return grade_answer(text, finish_reason, last_box, lambda answer: (answer == gold, "digits"), thinks=True)


def exact(gold: str, text: str, finish_reason: str) -> Grade:
    """The last box, or the whole answer without one, equals the gold text up to white space."""

    def find(part: str) -> str | None:
        return last_box(part) or _squeeze(part) or None

    return grade_answer(text, finish_reason, find, lambda answer: (_squeeze(answer) == _squeeze(gold), "exact"))


def number(gold: str, text: str, finish_reason: str) -> Grade:
    """The last box, or the last number of the answer without one, equals the gold number exactly (no tolerance)."""
    wanted = parse_number(gold)

    def find(part: str) -> str | None:
        boxed = last_box(part)
        if boxed is not None:
            return boxed
        found = _NUMBER.findall(part)
        return found[-1] if found else None

    def judge(answer: str) -> tuple[bool, str]:
        value = parse_number(answer)
        if value is None:
            measured = quantity(normalise(answer).rpartition("=")[2])  # with its unit, or as a fraction in LaTeX
            value = measured.value if measured else None
        return (False, "not a number") if value is None else (value == wanted, "number")

    return grade_answer(text, finish_reason, find, judge)


def parse_number(text: str) -> Fraction | None:
    """One decimal, integer or a/b, exact; thousands commas, a currency sign and outer dollars are dropped."""
    bare = text.strip().strip("$").replace("\\$", "").replace("\\!", "").replace("{,}", ",").strip().rstrip(".")
    if not _NUMBER.fullmatch(bare):
        return None
    numerator, _, denominator = bare.replace(",", "").partition("/")
    if denominator and int(denominator) == 0:
        return None
    return Fraction(numerator) / (int(denominator) if denominator else 1)


def _squeeze(text: str) -> str:
    return " ".join(text.split())
