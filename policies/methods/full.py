"""The upper reference: nothing is ever evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Policy
from policies.registry import register


@register
@dataclass(frozen=True)
class Full(Policy):
    """Full attention over the whole cache."""

    name: ClassVar[str] = "full"
    evicts: ClassVar[bool] = False
