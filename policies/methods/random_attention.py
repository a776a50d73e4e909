"""Random Attention: every candidate survives with the same probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Scorer
from policies.registry import register


@register
@dataclass(frozen=True)
class RandomAttention(Scorer):
    """A fresh uniform draw per event, layer and KV head (arXiv 2609.03430)."""

    name: ClassVar[str] = "random"
    scorer: ClassVar[str] = "policies.scoring.draws:per_head"
    rowwise: ClassVar[bool] = True
