"""R-KV (Cai et al., arXiv 2505.24133) as its authors' code computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Windowed, check_choice, check_range
from policies.registry import register

RETAIN = ("last", "first")


@register
@dataclass(frozen=True)
class RKVOfficial(Windowed):
    """Score = lambda * importance - (1 - lambda) * redundancy.

    Importance is snapkv_rkv's score. Redundancy is the softmax over all slots of a key's mean cosine with every key,
    after each key has forgiven one: the newest whose cosine with it exceeds the threshold, or slot 0 where there is
    none, which favours slot 0. The authors' class defaults to lambda 0.07; paper and README say 0.1.

    mix_lambda  weight of the importance
    threshold   cosine above which a key is similar; it decides only who is forgiven
    retain      "last" forgives the newest similar key; "first" always slot 0, as the authors' code does
    """

    name: ClassVar[str] = "rkv_official"
    scorer: ClassVar[str] = "policies.scoring.redundancy:rkv_official"

    window: int = 8
    kernel: int = 7
    pool: str = "max"
    mix_lambda: float = 0.1
    threshold: float = 0.5
    retain: str = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mix_lambda", self.mix_lambda, 0.0, 1.0)
        check_range("threshold", self.threshold, -1.0, 1.0)
        check_choice("retain", self.retain, RETAIN)
