"""Whether texts contain questions of the built-in tasks: statistics are never measured on what they are judged by.

A question counts as contained when a run of WORDS of its words is in the text, the usual contamination check; of a
question with fewer words, all of them in a row. Runs that several questions of a task share are its template.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from orchestrator.errors import UserError
from orchestrator.tasks import registry

WORDS = 13
SHORTEST = 12  # letters and digits; anything shorter says nothing

_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Questions:
    """Runs of words by which built-in questions are recognised, each with `task/problem_id`.

    compared  tasks with questions here, with their number
    absent    public sets that are not on this machine as a whole
    """

    runs: dict[tuple[str, ...], str]
    compared: dict[str, int]
    absent: tuple[str, ...]

    def found_in(self, text: str) -> str | None:
        """`task/problem_id` of a question in the text, or None."""
        words = _words(text)
        for length in {len(run) for run in self.runs}:
            for run in _windows(words, length):
                if run in self.runs:
                    return self.runs[run]
        return None


def built_in() -> Questions:
    """Questions of every task as far as they are on this machine: its data in default size and order, and its mini set.

    Nothing is fetched.
    """
    runs: dict[tuple[str, ...], str] = {}
    compared, absent = {}, []
    with _offline():
        for name in registry.names():
            texts: dict[str, str] = {}
            for options in ({}, {"mini": True}):
                try:
                    problems = registry.get(name, **options).problems()
                except UserError:
                    if not options and "mini" in registry.options(name):
                        absent.append(name)
                    continue
                texts |= {f"{name}/{problem.problem_id}": problem.messages[-1]["content"] for problem in problems}
            if texts:
                runs.update(_telling(texts))
                compared[name] = len(texts)
    return Questions(runs, compared, tuple(absent))


@contextmanager
def _offline() -> Iterator[None]:
    # read at call time by every request of the hub's library; its environment variable is only read at import
    from huggingface_hub import constants  # noqa: PLC0415 - costs a share of a second

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _telling(texts: dict[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Runs that only one question of the task has, from what is left without the template around all of them."""
    words = {key: _words(text) for key, text in texts.items()}
    before = _shared(list(words.values()))
    after = _shared([each[before:][::-1] for each in words.values()])
    own = {key: each[before : len(each) - after] for key, each in words.items()}
    runs = {key: set(_windows(each, min(WORDS, len(each)))) for key, each in own.items()}
    seen = Counter(run for each in runs.values() for run in each)
    for key, each in runs.items():
        yield from ((run, key) for run in each if seen[run] == 1)


def _shared(texts: Sequence[Sequence[str]]) -> int:
    """Words that all texts begin with."""
    columns = zip(*texts, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns)) if len(texts) > 1 else 0


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _windows(words: Sequence[str], length: int) -> Iterator[tuple[str, ...]]:
    for start in range(len(words) - length + 1):
        run = tuple(words[start : start + length])
        if sum(map(len, run)) >= SHORTEST:
            yield run
