"""Stratified in-place replacement: random eviction without events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Replacer
from policies.registry import register


@register
@dataclass(frozen=True)
class RandomInplace(Replacer):
    """Every new token overwrites a random slot of its class modulo interval, so the newest tokens are always safe.

    The marginal survival law of `random` with capacity keep instead of keep + interval (contracts.md section 1).
    """

    name: ClassVar[str] = "random_inplace"
