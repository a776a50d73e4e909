"""Where the answer is: behind the last thought, in the last box. Shared by every grader so that all read alike.

Rules of thinking models: an unfinished thought holds no answer, whatever boxes it contains; `<think>` may have come
from the template, so only the closing tag is required.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from orchestrator.tasks.base import Grade, Verdict

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
STOP_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|end|>", "<|eot_id|>", "\n\nHuman:")
FINISHED = ("stop", "length")
BOXES = ("\\boxed", "\\fbox", "\\framebox")

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_SHORT_BOX = re.compile(r"\\boxed\s+([^\s{$\\.,]+)")
_TAGGED = re.compile(r"<answer>\s*([^<>]*?)\s*</answer>", re.IGNORECASE)
_DECLARED = re.compile(
    r"(?:final\s+answer|answer|result)\W{0,6}(?:is|:)\W{0,3}?\s*\**\s*(\$[^$]+\$|[^\n]+)", re.IGNORECASE
)
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")

Finder = Callable[[str], str | None]
Judge = Callable[[str], tuple[bool, str]]


def answer_part(text: str, finish_reason: str, *, thinks: bool = False) -> str | None:
    """Text behind the last `</think>`; None while a thought is unfinished.

    thinks: the prompt already opened the thought, so a text without any tag is an unfinished one.
    """
    text = until_stop(text)
    _, closed, tail = text.rpartition(THINK_CLOSE)
    if closed:
        return tail
    unfinished = thinks or finish_reason == "length" or THINK_OPEN in text
    return None if unfinished else tail


def until_stop(text: str) -> str:
    """Text before the first stop token: what a model wrote past its own end is no part of its answer."""
    for token in STOP_TOKENS:
        text = text.split(token, 1)[0]
    return text


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Every balanced `\boxed{...}` or `\fbox{...}`: (start, end, content), outermost only, in order."""
    found = []
    at = 0
    while (start := _next_box(text, at)) is not None:
        begin = text.index("{", start) + 1
        end = _closing_brace(text, begin)
        if end is None:
            at = begin
            continue
        found.append((start, end + 1, text[begin:end]))
        at = end + 1
    return found


def last_box(text: str) -> str | None:
    """Content of the last balanced box, stripped; None without one."""
    found = boxes(text)
    return found[-1][2].strip() if found else None


def unboxed(part: str) -> str | None:
    r"""Where no box is balanced: `\boxed 5`, else an answer in tags, in words or in bold; None behind an open box."""
    if "\\boxed" in part:
        short = _SHORT_BOX.findall(part)
        return short[-1] if short else None
    if tagged := _TAGGED.findall(part):
        return tagged[-1] or None
    if found := _DECLARED.findall(part):
        line = found[-1].strip().lstrip(":* ")
        return re.sub(r"[.*\s]+$", "", line.split(". ", 1)[0]) or None
    bold = _BOLD.findall(part)
    return bold[-1].strip().rstrip(".") or None if bold else None


def grade_answer(
    text: str,
    finish_reason: str,
    find: Finder,
    judge: Judge,
    *,
    thinks: bool = False,
    marks: tuple[str, ...] = BOXES,
) -> Grade:
    """The frame of every grader: locate the answer, then judge it; absence is told apart from error and truncation.

    find   answer part -> extracted answer or None
    judge  extracted answer -> (is correct, name of the rule that decided)
    marks  what the lenient reading accepts inside a thought: a box, never a number or a phrase in passing
    """
    started = time.perf_counter()
    if finish_reason not in FINISHED:
        return Grade(Verdict.ERROR, None, f"finish_reason {finish_reason}", 0.0, Verdict.ERROR)
    part = answer_part(text, finish_reason, thinks=thinks)
    extracted = None if part is None else find(part)
    if extracted:
        correct, method = judge(extracted)
        verdict = lenient = Verdict.CORRECT if correct else Verdict.WRONG
    else:
        verdict = Verdict.TRUNCATED if finish_reason == "length" else Verdict.NO_ANSWER
        method = "unfinished thought" if part is None else "nothing to extract" if text.strip() else "empty text"
        lenient = verdict
        whole = until_stop(text)
        if any(mark in whole for mark in marks) and (found := find(whole)):
            lenient = Verdict.CORRECT if judge(found)[0] else Verdict.WRONG
    return Grade(verdict, extracted or None, method, time.perf_counter() - started, lenient)


def _next_box(text: str, at: int) -> int | None:
    found = _BOX.search(text, at)
    return found.start() if found else None


def _closing_brace(text: str, begin: int) -> int | None:
    depth = 1
    at = begin
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1  # an escaped brace is a character of the answer
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None
