"""VaSE (arXiv 2606.03928): keep the keys of wide values, sample the rest by attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Windowed
from policies.registry import register

QUARTER = -1


@register
@dataclass(frozen=True)
class VaSE(Windowed):
    """The `n_large` slots of widest values stay; the others are drawn without replacement, by snapkv's score.

    A value's width is its maximum minus its minimum over dimensions (authors' mode `range_sink_sample_attn`), compared
    in bfloat16 as there, the lower slot first among equals.
    The first n_sink tokens count as widest, inside n_large. With a protected prefix the sinks in it have used up their
    part of n_large, the other protected slots have not: min(n_large - sinks, selectable) candidates stay for their
    width (`vase_paper` has the authors' rule). Slots whose attention is 0 come last.

    n_large  slots kept for their width, sinks included; -1 = a quarter of keep, as in the authors' scripts
    n_sink   first tokens that count as widest
    """

    name: ClassVar[str] = "vase"
    version: ClassVar[int] = 2  # 1 compared widths in fp32, where the last bit chose among equal tokens
    scorer: ClassVar[str] = "policies.scoring.value_range:vase"

    n_large: int = QUARTER
    n_sink: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_large < QUARTER:
            raise ValueError(f"n_large is {self.n_large}; it must be at least 0, or -1 for a quarter of keep.")
        if self.n_sink < 0:
            raise ValueError(f"n_sink is {self.n_sink}; it must be at least 0.")

    def widest(self, keep: int, prot: int, n_select: int) -> int:
        """Candidates that stay for their width, of the n_select that stay at all; keep = K', all in slots."""
        return max(0, min(self._large(keep) - min(self.n_sink, prot), n_select))

    def _large(self, keep: int) -> int:
        return keep // 4 if self.n_large == QUARTER else self.n_large
