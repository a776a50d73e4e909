"""Sliding window: the newest tokens stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Needs, Scorer
from policies.registry import register


@register
@dataclass(frozen=True)
class Recent(Scorer):
    """Score = logical position; no sinks of its own (the job's protection decides)."""

    name: ClassVar[str] = "recent"
    needs: ClassVar[Needs] = Needs(positions=True)
    shared: ClassVar[bool] = True
    scorer: ClassVar[str] = "policies.scoring.positions:newest"
    rowwise: ClassVar[bool] = True
