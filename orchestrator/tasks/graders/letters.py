"""Multiple choice: one letter, from the clearest place that names one. No first or last capital is ever guessed."""

from __future__ import annotations

import re

from orchestrator.tasks.base import Grade
from orchestrator.tasks.graders.answers import BOXES, boxes, grade_answer

VERSION = 3
_OPEN = r"[*$`\\(\[{_]*(?:text\w*\{|math\w+\{|boxed\{)*\s*\(?"
_NAMED = r"(?:(?:option|choice|letter)\s+)?"
_JSON = re.compile(
    r"[\"'`](?:final_)?answer[\"'`]\s*:\s*"
    r"(?:[\"'`]\s*\(?([A-Za-z])\)?(?:[\"'`]|[.:)]\s)|([A-Za-z])\s*(?:[,}\n]|$))",
    re.IGNORECASE,
)
_LINE = re.compile(
    rf"\b(?:answer|(?:correct|right|best)\s+(?:option|choice))\s*\**\s*(?:[:=]|\s[-–]\s|\n)\s*\**\s*{_OPEN}{_NAMED}{_OPEN}([A-Za-z])(?![A-Za-z'])",
    re.IGNORECASE,
)
_PROSE = re.compile(
    rf"\b(?:(?:answer|choice|option)\s+(?:is|would\s+be|must\s+be|should\s+be)|I(?:'d|\s+would)?\s+(?:choose|pick|select|go\s+with))\s*:?\s*"
    rf"{_NAMED}{_OPEN}([A-Za-z])(?![A-Za-z'])"
    rf"|\b(?:option|choice)\s+{_OPEN}([A-Za-z])\s*[)*}}$]*\s+is\s+(?:the\s+)?(?:correct|right|best)\b"
    rf"|(?<![\w']){_OPEN}((?-i:[A-Z]))[)*}}$]*\s+is\s+(?:the\s+)?(?:correct|right|best)\s+(?:answer|option|choice)\b"
    rf"|(?:^|[.\n]\s*|\b(?:so|thus|hence|therefore),?\s+){_OPEN}((?-i:[A-Z]))[)*}}$]*\s+is\s+correct\b",
    re.IGNORECASE,
)
_TAG = re.compile(rf"<answer>\s*{_NAMED}{_OPEN}([A-Za-z])(?![A-Za-z'])", re.IGNORECASE)
# "B or C" and nothing more: two letters are no choice
_HEDGE = re.compile(rf"[)*}}$\]_]*\s*(?:,|/|&|\bor\b|\band\b)+\s*{_NAMED}{_OPEN}[A-Z][)*}}$\]_]*\s*(?:[.\n]|$)")
_ALONE = re.compile(rf"{_OPEN}([A-Z])[)*}}$._]*")
_LABELLED = re.compile(rf"{_OPEN}([A-Z])(?:\*\*)?[).:](?:\*\*)?\s+\S.*")
_BOX = re.compile(r"(?:(?:option|choice|answer)\s*:?\s*)?\(?\s*([A-Za-z])\s*\)?(?:[.:)].*)?", re.DOTALL | re.IGNORECASE)
_WIDE = str.maketrans("：（）", ":()")
_FONT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|bf|rm)\s*\{([^{}]*)\}")


def grade(gold: str, text: str, finish_reason: str, options: str = "ABCD") -> Grade:
    """The letter equals gold. A letter outside `options`, or two of them in boxes, is an answer and a wrong one."""

    def judge(answer: str) -> tuple[bool, str]:
        if answer not in options:
            return False, "not an option"
        return answer == gold, "letter"

    return grade_answer(text, finish_reason, find, judge, marks=(*BOXES, '"answer"'))


def find(part: str) -> str | None:
    """JSON field, boxed letter, the last `Answer: X`, the last "the answer is X", a last line of one letter; None."""
    part = part.translate(_WIDE)
    if found := list(_JSON.finditer(part)):
        return _letter(_caught(found[-1]))
    if boxed := [content for _, _, content in boxes(part)]:
        return _boxed(part, boxed)
    for pattern in (_TAG, _LINE, _PROSE):
        if found := [match for match in pattern.finditer(part) if _caught(match) not in ("a", "I")]:
            hedge = _HEDGE.match(part, found[-1].end(found[-1].lastindex or 0))
            return f"{_caught(found[-1])}{hedge[0].rstrip()}" if hedge else _letter(_caught(found[-1]))
    lines = [line.strip() for line in part.splitlines() if line.strip()]
    if len(lines) == 1 and (match := _LABELLED.fullmatch(lines[0])):
        return match[1]
    alone = [match[1] for line in lines if (match := _ALONE.fullmatch(line))]
    # a list of the options is no choice
    return alone[0] if len(alone) == 1 and _ALONE.fullmatch(lines[-1]) else None


def _caught(match: re.Match[str]) -> str:
    """The letter, whichever alternative found it."""
    return next(group for group in match.groups() if group)


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
