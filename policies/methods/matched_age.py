"""A null for scored policies: random eviction with another policy's age-survival curve and head overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from policies.base import Needs, Scorer, check_range
from policies.registry import register


@register
@dataclass(frozen=True)
class MatchedAge(Scorer):
    """Random among tokens of one age, so that ages survive as under the policy that the curve was measured on.

    Each event draws with unequal chances (Pareto sampling, Rosen 1997): a token of age a, present at the last event,
    stays with chance S(a) / S(a - r), S interpolated between the bins on a log scale. Whatever a score knows beyond
    age is gone; a policy that is no better than this null owes its result to the ages that it keeps.

    survival   share of the evictable tokens still held, by log2 bin of age: of age 0, 1, 2-3, 4-7, ...
    overlap    chance that a token's fate is drawn once for all layers and heads, from 0 (each head for itself) to 1
    r          tokens between two events

    Raises ValueError for shares outside [0, 1] and for no bin.
    """

    name: ClassVar[str] = "matched_age"
    needs: ClassVar[Needs] = Needs(positions=True)
    scorer: ClassVar[str] = "policies.scoring.nulls:matched_age"
    example: ClassVar[Mapping[str, Any]] = {"survival": (1.0, 1.0, 0.9, 0.8, 0.6, 0.3)}

    survival: tuple[float, ...]
    overlap: float = 0.0
    r: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "survival", tuple(float(share) for share in self.survival))
        if not self.survival:
            raise ValueError("survival is empty; give a share for each log2 bin of age.")
        for share in self.survival:
            check_range("survival", share, 0.0, 1.0)
        check_range("overlap", self.overlap, 0.0, 1.0)
        if self.r < 1:
            raise ValueError(f"r is {self.r}; it must be at least 1.")
