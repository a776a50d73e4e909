"""Families W (walk) and P (program): the embedded reasoner's arithmetic on two-digit state, spelled out step by step.

A problem is a pure function of its id, so the set has no end and no file. The model's training problems were drawn from
random generators, these from hashes of ids: of about 1e22 (W) and 1e15 (P) possible problems none is expected in both.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from orchestrator.cells import fingerprint
from orchestrator.errors import UserError
from orchestrator.tasks.base import Grade, Problem
from orchestrator.tasks.graders import plain
from orchestrator.tasks.registry import register

RULES = "ABCDEFGHIJ"
REGISTERS = "abcd"
RECAPS = (4, 8)
MAX_STEPS = 99
DEFAULT_PROBLEMS = 200

# Each mark is one token of the reasoner, every other character is one token.
_MARKS = ("</think>", "\\boxed{")


class Numbers:
    """Integers that depend on a key and on how many were taken before, and on nothing else."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = itertools.count()

    def between(self, low: int, high: int) -> int:
        """Uniform in low..high; the modulo bias is below 1e-17."""
        label = f"{self._key}/{next(self._count)}".encode()
        digest = hashlib.blake2b(label, digest_size=8, person=b"evictb-reasoner").digest()
        return low + int.from_bytes(digest, "big") % (high - low + 1)


@dataclass(frozen=True, slots=True)
class Walk:
    """Family W: x walks by rules that x and the step number choose; m is its maximum."""

    start: int
    steps: int
    recap: int
    rules: tuple[int, ...]

    @staticmethod
    def draw(numbers: Numbers, steps: tuple[int, int], recap: int) -> Walk:
        """A problem from keyed numbers."""
        start = numbers.between(0, 99)
        n = numbers.between(*steps)
        return Walk(start, n, recap, tuple(numbers.between(1, 99) for _ in RULES))

    @property
    def prompt(self) -> str:
        rules = "".join(f"{letter}{addend:02d}" for letter, addend in zip(RULES, self.rules, strict=True))
        return f"Wx{self.start:02d}n{self.steps:02d}R{self.recap}{rules}"

    def solve(self) -> tuple[str, str]:
        """(reference thought, answer): the trace that the model was trained to write, and the digits in its box."""
        x = m = self.start
        lines = [f"R00x{x:02d}m{m:02d}"]
        for t in range(1, self.steps + 1):
            rule = (x + t) % len(RULES)
            total = (x + self.rules[rule]) % 100
            m = max(m, total)
            spelled = spell(x, self.rules[rule])
            lines.append(f"{t:02d}|{x:02d}{RULES[rule]}{self.rules[rule]:02d}:{spelled}>{total:02d}m{m:02d}")
            x = total
            if recap_due(t, self.recap, self.steps):
                lines.append(f"R{t:02d}x{x:02d}m{m:02d}")
        return "\n".join(lines) + "\n", f"{x:02d}{m:02d}"


@dataclass(frozen=True, slots=True)
class Program:
    """Family P: four registers and eight additions between them, run in a circle."""

    registers: tuple[int, ...]
    steps: int
    recap: int
    instructions: tuple[tuple[str, str], ...]

    @staticmethod
    def draw(numbers: Numbers, steps: tuple[int, int], recap: int) -> Program:
        """A problem from keyed numbers; destination and source of an instruction differ."""
        registers = tuple(numbers.between(0, 99) for _ in REGISTERS)
        n = numbers.between(*steps)
        instructions = []
        for _ in range(8):
            target = numbers.between(0, 3)
            source = (target + numbers.between(1, 3)) % 4
            instructions.append((REGISTERS[target], REGISTERS[source]))
        return Program(registers, n, recap, tuple(instructions))

    @property
    def prompt(self) -> str:
        state = "".join(f"{name}{value:02d}" for name, value in zip(REGISTERS, self.registers, strict=True))
        code = "".join(f"{label}{to}{frm}" for label, (to, frm) in zip(RULES, self.instructions, strict=False))
        return f"P{state}n{self.steps:02d}R{self.recap}{code}"

    def solve(self) -> tuple[str, str]:
        """(reference thought, answer), as for Walk."""
        state = dict(zip(REGISTERS, self.registers, strict=True))
        lines = [f"R00{_show(state)}"]
        for t in range(1, self.steps + 1):
            index = (t - 1) % len(self.instructions)
            target, source = self.instructions[index]
            u, v = state[target], state[source]
            state[target] = (u + v) % 100
            result = f"{target}{state[target]:02d}"
            lines.append(f"{t:02d}|{RULES[index]}{target}{source}:{u:02d}+{v:02d}:{spell(u, v)}>{result}")
            if recap_due(t, self.recap, self.steps):
                lines.append(f"R{t:02d}{_show(state)}")
        return "\n".join(lines) + "\n", "".join(f"{value:02d}" for value in state.values())


@dataclass(frozen=True)
class _Reasoner:
    """Options: `steps` "low-high" additions per problem (difficulty), `recap` lines between restatements (4 or 8)."""

    steps: str = "26-32"
    recap: int = 8

    name: ClassVar[str]
    family: ClassVar[type[Walk] | type[Program]]
    version: ClassVar[int] = 1
    grader: ClassVar[str] = "digits"
    grader_version: ClassVar[int] = 1
    samples_default: ClassVar[int] = 1
    size: ClassVar[int | None] = None
    licence: ClassVar[str] = "generated by this project, Apache-2.0"

    def __post_init__(self) -> None:
        self._range()
        if self.recap not in RECAPS:
            raise UserError(f"task '{self.name}': recap {self.recap!r} is not known to the reasoner; choose 4 or 8.")

    @property
    def revision(self) -> str:
        """The generator's version and difficulty: problems are functions of their ids."""
        return f"g{self.version}-{self._difficulty}"

    @property
    def prompt_hash(self) -> str:
        return fingerprint({"family": self.family.__name__, "turns": ["user"]})

    @property
    def expected_tokens(self) -> int:
        """Mean length of the reference answer over the first problems, in the reasoner's tokens."""
        lengths = [answer_tokens(problem) for problem in self.problems(32)]
        return round(sum(lengths) / len(lengths))

    def problems(self, limit: int | None = None) -> Sequence[Problem]:
        """The first `limit` problems; 200 when None."""
        return [self.problem(index) for index in range(DEFAULT_PROBLEMS if limit is None else limit)]

    def problem(self, index: int) -> Problem:
        """Problem number `index` of this difficulty."""
        problem_id = f"{self.family.__name__[0].lower()}{self._difficulty}-{index:06d}"
        item = self.family.draw(Numbers(problem_id), self._range(), self.recap)
        thought, answer = item.solve()
        meta: Mapping[str, object] = {"steps": item.steps, "recap": item.recap, "thought": thought}
        return Problem(problem_id, ({"role": "user", "content": item.prompt},), answer, meta)

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        """Exact match of the boxed digits."""
        return plain.digits(problem.gold, text, finish_reason)

    @property
    def _difficulty(self) -> str:
        low, high = self._range()
        return f"{low:02d}-{high:02d}-r{self.recap}"

    def _range(self) -> tuple[int, int]:
        low, dash, high = str(self.steps).partition("-")
        if not (low.isdecimal() and (high.isdecimal() if dash else not high)):
            raise UserError(f"task '{self.name}': steps {self.steps!r} is not a number or a range such as 26-32.")
        bounds = int(low), int(high or low)
        if not 1 <= bounds[0] <= bounds[1] <= MAX_STEPS:
            raise UserError(f"task '{self.name}': steps {self.steps!r} must rise within 1..{MAX_STEPS} (two digits).")
        return bounds


@register
@dataclass(frozen=True)
class ReasonerW(_Reasoner):
    """Walk: every line restates the whole state, so the newest tokens and the prompt suffice."""

    name: ClassVar[str] = "reasoner_w"
    family = Walk


@register
@dataclass(frozen=True)
class ReasonerP(_Reasoner):
    """Program: operands are fetched from where they were last written, 140-290 tokens back; the brittle family."""

    name: ClassVar[str] = "reasoner_p"
    family = Program


def spell(u: int, v: int) -> str:
    """u + v for two-digit numbers, units then tens with carry: `9+9=18,5+9+1=15`."""
    units = u % 10 + v % 10
    carry = units // 10
    tens = u // 10 + v // 10 + carry
    return f"{u % 10}+{v % 10}={units:02d},{u // 10}+{v // 10}+{carry}={tens:02d}"


def recap_due(step: int, recap: int, steps: int) -> bool:
    """Whether the state is restated after this step."""
    return step % recap == 0 or step == steps


def reference_text(problem: Problem) -> str:
    """The perfect generation for a problem, without the end token."""
    return f"{problem.meta['thought']}</think>\\boxed{{{problem.gold}}}"


def answer_tokens(problem: Problem) -> int:
    """Tokens of the perfect generation in the reasoner's vocabulary, end token included."""
    text = reference_text(problem)
    for mark in _MARKS:
        text = text.replace(mark, "#")
    return len(text) + 1


def _show(state: Mapping[str, int]) -> str:
    return "".join(f"{name}{value:02d}" for name, value in state.items())
