"""Scores by keyed draws (policies/draws.py); integers, so that ranks are equal on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from policies.base import Policy
    from policies.methods.random_block import RandomBlock
    from policies.view import CacheView


def per_head(policy: Policy, view: CacheView) -> torch.Tensor:
    """One draw per layer, KV head and slot: int64 [L, H, S]."""
    del policy
    return view.draw.keys(view.shape[2])


def per_layer(policy: Policy, view: CacheView) -> torch.Tensor:
    """One draw per layer and slot for all KV heads: int64 [L, 1, S]."""
    del policy
    return view.draw.shared_keys(view.shape[2])


def per_block(policy: RandomBlock, view: CacheView) -> torch.Tensor:
    """One draw per layer, KV head and run of slots: int64 [L, H, S]."""
    return view.draw.block_keys(view.shape[2], policy.block)
