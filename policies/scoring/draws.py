"""Scores by keyed draws (policies/draws.py); integers, so that ranks are equal on every device.

Only candidates are drawn: draws are most of what a random event costs. A draw is a function of its own slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from policies.base import Policy
    from policies.methods.random_block import RandomBlock
    from policies.view import CacheView


def per_head(policy: Policy, view: CacheView) -> torch.Tensor:
    """One draw per layer, KV head and candidate: int64 [L, H, S - recent]."""
    del policy
    return view.draw.keys(view.shape[2] - view.recent, view.prot)


def per_layer(policy: Policy, view: CacheView) -> torch.Tensor:
    """One draw per layer and candidate for all KV heads: int64 [L, 1, S - recent]."""
    del policy
    return view.draw.shared_keys(view.shape[2] - view.recent, view.prot)


def per_block(policy: RandomBlock, view: CacheView) -> torch.Tensor:
    """One draw per layer, KV head and run of slots: int64 [L, H, S - recent]."""
    return view.draw.block_keys(view.shape[2] - view.recent, policy.block)
