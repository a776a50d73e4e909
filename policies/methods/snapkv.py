"""SnapKV (Li et al., arXiv 2404.14469) for decoding, as the paper we test ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Windowed
from policies.registry import register


@register
@dataclass(frozen=True)
class SnapKV(Windowed):
    """Mean attention of the newest 64 queries, average-pooled over 5 slots, mean over the group's query heads.

    The rule of VaSE's code (mode `attn`), which arXiv 2609.03430 runs: softmax per
    query head over every slot outside the recent ones, no causal mask, missing neighbours count as 0. SnapKV's own code
    compresses prompts only and keeps a set per query head. No sinks of its own.
    """

    name: ClassVar[str] = "snapkv"
    scorer: ClassVar[str] = "policies.scoring.window:snapkv"
