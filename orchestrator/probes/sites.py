"""Where facts may live: sets of KV heads per fact, or per token, and the masks that hold them there.

A KV head index means that head in every layer, as in the published probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from orchestrator.probes.instances import Instance

Heads = frozenset[int]
Masks = tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Placement:
    """Heads that keep each fact's tokens; every other head loses them as soon as they are candidates.

    by_fact   one set per fact, in the order of the instance's facts
    rotation  instead, for the only fact: token i lives in set i mod n
    """

    name: str
    by_fact: tuple[Heads, ...] = ()
    rotation: tuple[Heads, ...] = ()

    def masks(self, instance: Instance, layers: int, heads: int) -> Masks:
        """(pinned, banned), bool [layers, heads, tokens]."""
        pinned = np.zeros((layers, heads, len(instance.tokens)), bool)
        banned = np.zeros_like(pinned)
        for number, positions in enumerate(instance.facts.values()):
            for order, position in enumerate(positions):
                home = self.rotation[order % len(self.rotation)] if self.rotation else self.by_fact[number]
                for head in range(heads):
                    (pinned if head in home else banned)[:, head, position] = True
        return pinned, banned


def named(heads: Heads) -> str:
    """`{2,5}`."""
    return "{" + ",".join(map(str, sorted(heads))) + "}"


def everywhere(heads: int, facts: int = 1) -> Placement:
    """Every head keeps every fact."""
    return Placement("kept", (frozenset(range(heads)),) * facts)


def nowhere(facts: int = 1) -> Placement:
    """No head keeps any fact."""
    return Placement("deleted", (frozenset(),) * facts)


def only(heads: Heads) -> Placement:
    """One fact in a set of heads."""
    return Placement(named(heads), (heads,))


def pairs(ranked: Sequence[int], most: int = 28) -> list[Heads]:
    """All pairs of heads, or those of the best heads where they are more than `most`; `ranked` is best first."""
    count = len(ranked)
    while count > 2 and count * (count - 1) // 2 > most:
        count -= 1
    return [frozenset(pair) for pair in combinations(ranked[:count], 2)]


def triples(pair: Heads, heads: int) -> list[Heads]:
    """A pair with each further head."""
    return [pair | {head} for head in range(heads) if head not in pair]


def scattered(triple: Heads) -> tuple[Placement, tuple[Heads, ...]]:
    """A fact cut up over the three pairs of a triple, token by token, and the pairs in order of rotation."""
    rotation = tuple(frozenset(pair) for pair in combinations(sorted(triple), 2))
    return Placement(f"scattered over {named(triple)}", rotation=rotation), rotation


def shares(tokens: int, rotation: Sequence[Heads]) -> dict[Heads, float]:
    """Share of a fact's tokens that a rotation puts into each set: weights of the intact arms of equal mass."""
    return {home: len(range(place, tokens, len(rotation))) / tokens for place, home in enumerate(rotation)}


def apart(first: int, second: int) -> Mapping[str, Placement]:
    """Two facts, each in one head: alone and together."""
    a, b, none = frozenset({first}), frozenset({second}), frozenset[int]()
    return {
        "first": Placement(f"first in {named(a)}", (a, none)),
        "second": Placement(f"second in {named(b)}", (none, b)),
        "both": Placement(f"first in {named(a)}, second in {named(b)}", (a, b)),
    }
