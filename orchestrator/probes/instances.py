"""Probe instances: token scripts with planted facts, pure functions of a seed, an index and filler text.

All instances of a probe have equal lengths, so that they run as batches and meet their events at equal times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.tasks.reasoner import Numbers

NAMES = ("zq", "kx", "vb", "jw", "qm", "xr", "wn", "pz")
"""Variables that ordinary text does not use; each is taken where the tokenizer splits it as it splits the first."""
ATTEMPTS = 1000

Encode = Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Instance:
    """One script. Positions count tokens from the first prompt token.

    facts   token positions of each fact by name, every statement of it included
    reads   spans (first, one past last) of what is asked, in the order of `facts`
    values  what is asked, as text
    """

    key: str
    tokens: tuple[int, ...]
    prompt: int
    facts: Mapping[str, tuple[int, ...]]
    reads: tuple[tuple[int, int], ...]
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Lengths in tokens: filler before the first fact, between the last statement and the question, between statements.

    times   statements of the fact
    facts   1, or 2 facts with values of their own
    salient the fact is a passcode and not a variable
    """

    lead: int
    distance: int
    gap: int = 0
    times: int = 1
    facts: int = 1
    salient: bool = False

    @property
    def tokens(self) -> int:
        """Filler that an instance needs, about."""
        return self.lead + self.distance + self.gap * (self.times * self.facts - 1)


class TextGrammar:
    """Facts as sentences among a model's own text, for models that follow English.

    encode  text to token ids without special tokens; prompt: rendered chat prompt that opens the answer
    filler  texts, token ids; those that hold a word of the facts are left out
    Raises ValueError when no text is left or facts cannot be written in equal lengths.
    """

    def __init__(self, encode: Encode, prompt: Sequence[int], filler: Sequence[str], seed: int) -> None:
        self._encode, self._prompt, self._seed = encode, tuple(prompt), seed
        self._texts = [text for text in filler if "passcode" not in text.lower()]
        self._names = [name for name in NAMES if len(encode(f"Let {name} = ")) == len(encode(f"Let {NAMES[0]} = "))]
        if not self._texts or len(self._names) < 2:
            raise ValueError("probes need filler text without the word 'passcode' and variable names of equal length")

    def instance(self, layout: Layout, index: int) -> Instance:
        """Instance number `index`."""
        key = f"probe/{self._seed}/{layout}/{index}"
        numbers = Numbers(key)
        values = self._values(numbers, layout.facts)
        names = _draw(numbers, self._names, layout.facts)
        stream = self._stream(numbers, (*values, *(f" {name} " for name in names)))
        tokens: list[int] = list(self._prompt)
        places: dict[str, list[int]] = {name: [] for name in names}

        def fill(count: int) -> None:
            tokens.extend(next(stream) for _ in range(count))

        fill(layout.lead)
        statements = [(name, value) for _ in range(layout.times) for name, value in zip(names, values, strict=True)]
        for number, (name, value) in enumerate(statements):
            said = self._statement(layout, name, value)
            if number:
                fill(max(0, layout.gap - len(said)))
            places[name].extend(range(len(tokens), len(tokens) + len(said)))
            tokens += said
        fill(layout.distance)
        reads = []
        for number, (name, value) in enumerate(zip(names, values, strict=True)):
            tokens += self._encode("\nThe important passcode is " if layout.salient else _question(number, name))
            reads.append((len(tokens), len(tokens) + len(self._encode(value))))
            tokens += self._encode(value)
        facts = {name: tuple(places[name]) for name in names}
        return Instance(key, tuple(tokens), len(self._prompt), facts, tuple(reads), values)

    def _statement(self, layout: Layout, name: str, value: str) -> list[int]:
        before = "\nThe important passcode is " if layout.salient else f"\nLet {name} = "
        return [*self._encode(before), *self._encode(value), *self._encode(". Remember it.\n")]

    def _values(self, numbers: Numbers, count: int) -> tuple[str, ...]:
        usual = len(self._encode("5555"))
        found: list[str] = []
        for _ in range(ATTEMPTS):
            value = str(numbers.between(5000, 9999))
            if value not in found and len(self._encode(value)) == usual:
                found.append(value)
            if len(found) == count:
                return tuple(found)
        raise ValueError("this tokenizer splits four-digit numbers in unequal ways")

    def _stream(self, numbers: Numbers, forbidden: Sequence[str]) -> _Stream:
        texts = [text for text in self._texts if not any(word in text for word in forbidden)]
        return _Stream(numbers, [self._encode(text) for text in texts])


class _Stream:
    """Tokens of texts in keyed order, each begun at a keyed place, without end."""

    def __init__(self, numbers: Numbers, texts: Sequence[Sequence[int]]) -> None:
        if not any(texts):
            raise ValueError("every filler text holds the fact that is to be hidden in it; give more texts")
        self._numbers, self._texts = numbers, [text for text in texts if text]
        self._rest: Sequence[int] = ()

    def __next__(self) -> int:
        if not self._rest:
            text = self._texts[self._numbers.between(0, len(self._texts) - 1)]
            self._rest = text[self._numbers.between(0, len(text) // 2) :]
        first, self._rest = self._rest[0], self._rest[1:]
        return first


def _question(number: int, name: str) -> str:
    return f"\nRecall: {name} = " if number == 0 else f", {name} = "


def _draw(numbers: Numbers, choices: Sequence[str], count: int) -> list[str]:
    left = list(choices)
    return [left.pop(numbers.between(0, len(left) - 1)) for _ in range(count)]
