"""CAOTE (Goel et al., arXiv 2504.14051): how much the attention output changes when a token leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Windowed
from policies.registry import register


@register
@dataclass(frozen=True)
class Caote(Windowed):
    """a / (1 - a) · |v - o|, where a is the attention of a slot and o = Σ a v the output over the candidates.

    The paper's error of evicting one token, on top of another score. Here a is SnapKV's (policies/methods/snapkv.py):
    mean over the newest 64 queries and the group, average-pooled, which is how the code of arXiv 2609.03430 runs it.
    """

    name: ClassVar[str] = "caote"
    scorer: ClassVar[str] = "policies.scoring.output_change:caote"
