"""Scores by age."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from policies.base import Policy
    from policies.view import CacheView


def newest(policy: Policy, view: CacheView) -> torch.Tensor:
    """Logical position, int64 [L, H, S]: hole filling reorders slots, so the slot index says nothing about age."""
    del policy
    return view.need("positions")
