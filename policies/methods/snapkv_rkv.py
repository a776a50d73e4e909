"""SnapKV's rule as R-KV's code carries it into decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Windowed, check_choice
from policies.registry import register

TIES = ("slot", "raw")


@register
@dataclass(frozen=True)
class SnapKVOfRKV(Windowed):
    """Attention of the newest 8 queries, max-pooled over 7 slots.

    Logits are maximised over the group's query heads before the softmax over every slot outside the recent ones. The
    authors' window is also their only recent buffer; here the job's recent is kept and excluded from the softmax.

    ties   pooling makes the neighbours of a peak equal to it: "slot" takes the lower slot, which can evict the peak
           itself; "raw" the higher score before pooling (the authors' topk leaves it undefined)
    """

    name: ClassVar[str] = "snapkv_rkv"
    scorer: ClassVar[str] = "policies.scoring.window:snapkv_rkv"

    window: int = 8
    kernel: int = 7
    pool: str = "max"
    ties: str = "slot"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("ties", self.ties, TIES)
