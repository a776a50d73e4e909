"""The program in an answer: the last closed block tagged as Python, else the last closed block."""

from __future__ import annotations

import ast
import warnings

from orchestrator.tasks.graders.answers import answer_part, until_stop

_PYTHON = ("python", "py", "python3")


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
        line = lines[at].strip()
        if not line.startswith("```"):
            at += 1
            continue
        tag = line[3:].strip().lower()
        closings = [index for index in range(at + 1, len(lines)) if lines[index].strip() == "```"]
        if not closings:
            return found, tag
        end = _closing(lines, at + 1, closings) if tag in _PYTHON else closings[0]
        found.append((tag, "\n".join(lines[at + 1 : end])))
        at = end + 1
    return found, None


def _closing(lines: list[str], start: int, closings: list[int]) -> int:
    """The first fence at which the code is whole: a fence may stand inside a string."""
    for end in closings:
        if _parses("\n".join(lines[start:end])):
            return end
    return closings[0]


def _parses(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
