"""Probe instances in the embedded reasoner's own language, around its own full-cache answers.

A passcode is the line `@dddd`, asked as `?@`, which the model was trained on. Two facts are the two operands of a step
of its register programs: the addition that gave either register its value, and every later mention of that value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.probes.instances import Encode, Instance, Layout
from orchestrator.tasks.reasoner import REGISTERS, Numbers

STEPS = 34
"""Additions of a problem: its answer has about 1,100 tokens, the longest that the model was trained on."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A problem's prompt and the model's own full-cache answer to it, both as token ids, and the answer's text."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    text: str


class ReasonerGrammar:
    """Instances from answered walks (one fact) and answered programs (two facts)."""

    def __init__(self, encode: Encode, walks: Sequence[Answered], programs: Sequence[Answered], seed: int) -> None:
        self._encode, self._walks, self._programs, self._seed = encode, walks, programs, seed

    def instance(self, layout: Layout, index: int) -> Instance:
        """Instance number `index`. Raises ValueError where answers are too short for the layout."""
        return self._operands(layout, index) if layout.facts == 2 else self._passcode(layout, index)

    def _passcode(self, layout: Layout, index: int) -> Instance:
        key = f"probe/{self._seed}/{layout}/{index}"
        numbers = Numbers(key)
        walk = self._walks[index % len(self._walks)]
        lines = [self._encode(line) for line in _thought(walk.text)]
        value = f"{numbers.between(0, 9999):04d}"
        said = self._encode(f"@{value}\n")
        tokens, places = list(walk.prompt), list[int]()
        rest = iter(lines)
        _fill(tokens, rest, layout.lead)
        for number in range(layout.times):
            if number:
                _fill(tokens, rest, layout.gap - len(said))
            places += range(len(tokens), len(tokens) + len(said))
            tokens += said
        _fill(tokens, rest, layout.distance)
        tokens += self._encode("?@")
        read = (len(tokens), len(tokens) + len(value))
        tokens += self._encode(value)
        return Instance(key, tuple(tokens), len(walk.prompt), {"code": tuple(places)}, (read,), (value,))

    def _operands(self, layout: Layout, index: int) -> Instance:
        """The script ends with the operands of the first step at least lead + distance tokens into the answer."""
        program = self._programs[index % len(self._programs)]
        mentions: dict[str, list[int]] = {}
        at = len(program.prompt)
        tokens = [*program.prompt, *program.answer]
        for line in _thought(program.text):
            if line.startswith("R"):
                for offset in (line.index(name) for name in REGISTERS):
                    mentions.setdefault(line[offset], []).extend(range(at + offset, at + offset + 3))
            elif at - len(program.prompt) >= layout.lead + layout.distance:
                return self._asked(program, tokens, at, line, mentions)
            else:
                _follow(line, at, mentions)
            at += len(line)
        raise ValueError(f"an answer of {len(program.answer)} tokens is too short for {layout.tokens} tokens of filler")

    def _asked(
        self, program: Answered, tokens: list[int], at: int, line: str, mentions: dict[str, list[int]]
    ) -> Instance:
        # 01|Adc:59+99: -> destination d, source c, their values at 7-8 and 10-11
        first, second = (at + 7, at + 9), (at + 10, at + 12)
        facts = {"first": tuple(mentions[line[4]]), "second": tuple(mentions[line[5]])}
        values = (line[7:9], line[10:12])
        key = f"probe/{self._seed}/operands/{at}/{program.prompt}"
        return Instance(key, tuple(tokens[: second[1]]), len(program.prompt), facts, (first, second), values)


def _follow(line: str, at: int, mentions: dict[str, list[int]]) -> None:
    """Take in a step's line: it mentions both operands and gives the destination a new value."""
    mentions[line[5]] += [at + 10, at + 11]
    # The spelled addition holds the new value's digits as well as `>d58` does.
    mentions[line[4]] = list(range(at + 12, at + len(line) - 1))


def _thought(text: str) -> list[str]:
    return text.partition("</think>")[0].splitlines(keepends=True)


def _fill(tokens: list[int], lines: Iterator[list[int]], count: int) -> None:
    """Whole lines, at least `count` tokens. Raises ValueError when the answer ends before."""
    aim = len(tokens) + count
    while len(tokens) < aim:
        line = next(lines, None)
        if line is None:
            raise ValueError(f"the model's answer ends {aim - len(tokens)} tokens before the question")
        tokens += line
