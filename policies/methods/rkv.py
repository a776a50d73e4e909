"""R-KV (Cai et al., arXiv 2505.24133): importance minus redundancy, as the paper we test ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Windowed, check_range
from policies.registry import register


@register
@dataclass(frozen=True)
class RKV(Windowed):
    """Score = lambda * importance - (1 - lambda) * redundancy (VaSE's code, mode `attn_rkv`).

    Importance is snapkv's score. Redundancy is the softmax, over the slots outside the recent ones, of a key's mean
    cosine with the others among them: no threshold, no forgiven neighbour.

    mix_lambda   weight of the importance
    """

    name: ClassVar[str] = "rkv"
    scorer: ClassVar[str] = "policies.scoring.redundancy:rkv"

    mix_lambda: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mix_lambda", self.mix_lambda, 0.0, 1.0)
