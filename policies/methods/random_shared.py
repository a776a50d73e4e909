"""Random eviction with one kept set per layer: does independence between heads matter?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Scorer
from policies.registry import register


@register
@dataclass(frozen=True)
class RandomShared(Scorer):
    """One draw per event and layer, used by all KV heads of the layer (contracts.md section 2)."""

    name: ClassVar[str] = "random_shared"
    shared: ClassVar[bool] = True
    scorer: ClassVar[str] = "policies.scoring.draws:per_layer"
    rowwise: ClassVar[bool] = True
