"""Multiple choice: one letter, from the clearest place that names one. No first or last capital is ever guessed."""

from __future__ import annotations

import re

from orchestrator.tasks.base import Grade
from orchestrator.tasks.graders.answers import BOXES, boxes, grade_answer

VERSION = 1
_JSON = re.compile(r"[\"'`]answer[\"'`]?\s*:\s*[\"'`]?\s*\(?([A-Za-z])\)?[\"'`]", re.IGNORECASE)
_LINE = re.compile(
    r"\b(?:final\s+)?answer\s*\**\s*:\s*[*$\\(\[{]*(?:text\{)?\s*\(?([A-Za-z])(?![A-Za-z])", re.IGNORECASE
)
_PROSE = re.compile(
    r"\b(?:answer|choice|option)\s+(?:is|would\s+be|must\s+be)\s*:?\s*(?:(?:option|choice|letter)\s+)?"
    r"[*$\\(\[{]*(?:text\{|mathbf\{|boxed\{)?\s*\(?([A-Za-z])(?![A-Za-z])",
    re.IGNORECASE,
)
_BOX = re.compile(r"\(?\s*([A-Za-z])\s*\)?(?:[.:)].*)?", re.DOTALL)
_FONT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|bf|rm)\s*\{([^{}]*)\}")


def grade(gold: str, text: str, finish_reason: str, options: str = "ABCD") -> Grade:
    """The letter equals gold. A letter outside `options`, or two of them in boxes, is an answer and a wrong one."""

    def judge(answer: str) -> tuple[bool, str]:
        if answer not in options:
            return False, "not an option"
        return answer == gold, "letter"

    return grade_answer(text, finish_reason, find, judge, marks=(*BOXES, '"answer"'))


def find(part: str) -> str | None:
    """JSON field, then boxed letter, then the last `Answer: X`, then the last "the answer is X"; None without any."""
    if found := _JSON.findall(part):
        return _letter(found[-1])
    if boxed := [content for _, _, content in boxes(part)]:
        return _boxed(part, boxed)
    for pattern in (_LINE, _PROSE):
        if found := [letter for letter in pattern.findall(part) if letter not in ("a", "I")]:
            return _letter(found[-1])
    return None


def _boxed(part: str, boxed: list[str]) -> str | None:
    ends = boxes(part)
    if len(ends) > 1 and re.fullmatch(
        r"[\s$,]*(?:\\text\{)?\s*(?:or|and)?\s*\}?[\s$,]*", part[ends[-2][1] : ends[-1][0]]
    ):
        pair = f"{boxed[-2]} or {boxed[-1]}"
        return boxed[-1].strip().upper() if boxed[-2].strip() == boxed[-1].strip() else pair
    content = _FONT.sub(r"\1", boxed[-1]).strip().strip("$*").strip()
    match = _BOX.fullmatch(content)
    return _letter(match[1]) if match else content or None


def _letter(text: str) -> str:
    return text.upper()
