"""Random eviction of runs of neighbouring tokens: does granularity matter?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Needs, Scorer
from policies.registry import register


@register
@dataclass(frozen=True)
class RandomBlock(Scorer):
    """One draw per run of `block` slots, counted from slot 0 and re-cut at every event (contracts.md section 2).

    block   slots per run; 1 equals `random`

    Raises ValueError when block is below 1. A run at the edge of the candidates or of the budget is cut.
    """

    name: ClassVar[str] = "random_block"
    needs: ClassVar[Needs] = Needs(order=True)
    scorer: ClassVar[str] = "policies.scoring.draws:per_block"
    rowwise: ClassVar[bool] = True

    block: int = 16

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"block is {self.block}; it must be at least 1.")
