"""TriAttention (arXiv 2604.04921): expected attention of future queries, from statistics of the model's queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Needs, Scorer
from policies.registry import register

AGGREGATIONS = ("mean", "max")
MOST_OFFSETS = 24


@register
@dataclass(frozen=True)
class TriAttention(Scorer):
    """Score of a key = mean over future distances of its expected logit, plus a norm term (policies.md section 8).

    Each query head's scores are z-normalised over the candidates; a KV head takes the maximum over its group and, as in
    the authors' code, the mean over all layers, so that one kept set per KV head index is shared by every layer.

    per_layer     every layer keeps its own set
    normalize     z-normalise before the maximum
    aggregation   mean | max over the future distances
    offsets       number of future distances 1, 2, 4, ...
    disable_trig  the norm term alone
    disable_mlr   norm term with E|q| undiminished by |E q|
    calibration   fingerprint of the calibration file; filled in when a job is expanded

    Raises ValueError for values out of range.
    """

    name: ClassVar[str] = "triattention"
    scorer: ClassVar[str] = "policies.scoring.triattention:score"

    per_layer: bool = False
    normalize: bool = True
    aggregation: str = "mean"
    offsets: int = 17
    disable_trig: bool = False
    disable_mlr: bool = False
    calibration: str = ""

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(f"aggregation is '{self.aggregation}'; choose {' or '.join(AGGREGATIONS)}.")
        if not 1 <= self.offsets <= MOST_OFFSETS:
            raise ValueError(f"offsets is {self.offsets}; it must be 1 to {MOST_OFFSETS}.")

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """All layers at once only where they share a kept set."""
        return Needs(calibration=True, all_layers=not self.per_layer)

    @property
    def distances(self) -> tuple[int, ...]:
        """Future distances that the score averages over, tokens."""
        return tuple(2**power for power in range(self.offsets))
