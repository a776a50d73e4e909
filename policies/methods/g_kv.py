"""G-KV (Liao et al., arXiv 2512.00504): attention of the newest queries, remembered from event to event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Needs, Scorer, check_range
from policies.registry import register


@register
@dataclass(frozen=True)
class GKV(Scorer):
    """Score = max(decay · score at the last event, attention now), attention now divided by its largest value.

    Attention now: causal softmax over all visible slots per query head, largest head of the group, mean over the
    newest `window` queries. As in the authors' code with their defaults (smoothing `max`, no pooling, no redundancy
    term); the window's own slots are what `recent` protects.

    window   newest queries that score
    decay    share of the old score that survives an event

    Raises ValueError for values out of range.
    """

    name: ClassVar[str] = "g_kv"
    scorer: ClassVar[str] = "policies.scoring.history:remembered"
    observer: ClassVar[str] = "policies.scoring.history:decayed_attention"

    window: int = 8
    decay: float = 0.8

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window is {self.window}; it must be at least 1.")
        check_range("decay", self.decay, 0, 1)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The window's queries, positions for the causal mask, and one score per slot."""
        return Needs(recent_queries=self.window, positions=True, slot_state=1)
