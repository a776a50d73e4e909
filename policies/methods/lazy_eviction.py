"""LazyEviction (Zhang et al., arXiv 2506.15969): tokens that regain attention after a while are kept for that while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Needs, Scorer, check_range
from policies.registry import register


@register
@dataclass(frozen=True)
class LazyEviction(Scorer):
    """Recurrence: a slot's longest interval between two queries that gave it at least `threshold` attention (MRI).

    Score = 2σ(-1 - (now - last)/MRI) + 2σ(1 - MRI), the second term 0 for a slot that never recurred: the formula of
    the authors' code. There every query head keeps its own set; here a KV head counts a query when any head of its
    group gives the attention.

    window     newest queries per event. At least the interval, or recurrences are missed; those before the first event
               are only seen as far as the window goes back, which the authors' tracking at every step does not miss
    threshold  attention that counts, the authors' alpha

    Raises ValueError for values out of range.
    """

    name: ClassVar[str] = "lazy_eviction"
    scorer: ClassVar[str] = "policies.scoring.history:recurrence"
    observer: ClassVar[str] = "policies.scoring.history:tracked_recurrence"

    window: int = 64
    threshold: float = 1e-4

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window is {self.window}; it must be at least 1.")
        check_range("threshold", self.threshold, 0, 1)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The window's queries, positions for the causal mask, last recurrence and longest interval per slot."""
        return Needs(recent_queries=self.window, positions=True, slot_state=2)
