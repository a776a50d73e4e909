"""H2O (Zhang et al., arXiv 2306.14048): heavy hitters by accumulated attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Needs, Scorer
from policies.registry import register


@register
@dataclass(frozen=True)
class H2O(Scorer):
    """Score = sum of the softmax probabilities that a slot got since it was written, over its group's query heads.

    A sum, not a mean over the queries that saw the slot: older slots had more chances, as in the authors' code. They
    evict at every step and per query head of models without groups; here an event evicts per KV head, and the recent
    half of their budget is the job's recent.

    prefill   the prompt's queries count as well, as in the paper; they favour the first tokens strongly
    """

    name: ClassVar[str] = "h2o"
    scorer: ClassVar[str] = "policies.scoring.window:accumulated"

    prefill: bool = True

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Attention mass of the decode steps, and of the prompt where it counts."""
        return Needs(attention="prefill" if self.prefill else "step")
