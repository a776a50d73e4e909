"""The program in an answer: the last closed block tagged as Python, else the last closed block."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

from orchestrator.tasks.graders.answers import answer_part, until_stop

_PYTHON = ("python", "py", "python3")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*([^`]*?)\s*")
_BEHIND_TEXT = re.compile(r"[^`]```(?:python3?|py)\s*$", re.IGNORECASE)


def program(text: str, finish_reason: str = "stop") -> str:
    """Code of an answer, empty when there is none. A block that is never closed was cut off and is not run."""
    part = answer_part(text, finish_reason)
    if part is None:
        return ""
    blocks, unclosed = _blocks(part.splitlines())
    if unclosed in _PYTHON:
        return ""
    tagged = [code for tag, code in blocks if tag in _PYTHON]
    return (tagged or [code for _, code in blocks] or [""])[-1]


def anywhere(text: str, finish_reason: str = "stop") -> str:
    """The paper's rule: the last closed block tagged as Python of the whole text, unfinished thoughts included."""
    blocks, _ = _blocks(until_stop(text).splitlines())
    return next((code for tag, code in reversed(blocks) if tag in _PYTHON), "")


def official(text: str, finish_reason: str = "stop") -> str:
    """LiveCodeBench's rule: what lies between the last two fence lines of the answer, whatever they are."""
    lines = (answer_part(text, finish_reason) or "").split("\n")
    fences = [index for index, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


def _blocks(lines: list[str]) -> tuple[list[tuple[str, str]], str | None]:
    """((tag, code) of every closed block, tag of an unclosed last one or None)."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        opening = _opening(lines[at])
        if opening is None:
            at += 1
            continue
        fence, tag = opening
        end, code = _closing(lines, at, fence, tag)
        if tag in _PYTHON and not _parses(code):
            # a block that was begun again without an end: the new one counts
            again = [index for index in range(at + 1, end) if (_opening(lines[index]) or ("", ""))[1] in _PYTHON]
            if again:
                at = again[0]
                continue
        if end == len(lines):
            return found, tag
        found.append((tag, code))
        at = end + 1
    return found, None


def _opening(line: str) -> tuple[str, str] | None:
    """(fence, tag) of a line that opens a block; behind other text only a block tagged as Python."""
    if match := _FENCE.fullmatch(line):
        tag = match[2].lower()
        return match[1], "python" if tag.split() and tag.split()[0].strip("{.}") in _PYTHON else tag
    return ("```", "python") if _BEHIND_TEXT.search(line) else None


def _closing(lines: list[str], at: int, fence: str, tag: str) -> tuple[int, str]:
    """(line of the closing fence, code) of the block opened at `at`; one past the last line where it never closes.

    Of Python the first fence at which the code is whole: a fence may stand inside a string, or behind the last line.
    """
    ends = [index for index in range(at + 1, len(lines)) if _closes(lines[index], fence)]
    codes = {end: textwrap.dedent("\n".join(lines[at + 1 : end])) for end in ends}
    if tag not in _PYTHON:
        return (ends[0], codes[ends[0]]) if ends else (len(lines), "")
    if whole := [end for end in ends if _parses(codes[end])]:
        return whole[0], codes[whole[0]]
    if ends:
        return ends[0], codes[ends[0]]
    for end in range(at + 1, len(lines)):
        before, found, _ = lines[end].partition(fence)
        code = textwrap.dedent("\n".join([*lines[at + 1 : end], before]))
        if found and _parses(code):
            return end, code.rstrip()
    return len(lines), ""


def _closes(line: str, fence: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(fence) and set(bare) == {fence[0]}


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
