"""StreamingLLM (Xiao et al., arXiv 2309.17453): attention sinks and a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from policies.base import Needs, Scorer
from policies.registry import register


@register
@dataclass(frozen=True)
class StreamingLLM(Scorer):
    """Score = logical position; under protection `sinks` the first n_sink tokens stay as well.

    Keys keep their original rotation; the authors' demo re-rotates by cache slot, which is another algorithm.
    Under protection `prompt` this equals `recent` by definition.
    """

    name: ClassVar[str] = "streaming_llm"
    needs: ClassVar[Needs] = Needs(positions=True)
    shared: ClassVar[bool] = True
    scorer: ClassVar[str] = "policies.scoring.positions:newest"
    rowwise: ClassVar[bool] = True
