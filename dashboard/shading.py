"""What the cache still held of a text when its generation ended: shares by age, measured, put back onto the text.

The store holds a histogram of ages per row (log2 bins), not one share per token, and texts, not token ids. So a stretch
of text stands for the tokens of one age bin: its share is their mean over layers, heads and tokens, and its place is
exact up to the spread of characters per token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from orchestrator.stats.survival import age_from, age_label, tokens_per_bin

LEVELS = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """Characters start .. end of a text, the share of (layer, head) pairs that still hold its tokens, and their age."""

    start: int
    end: int
    share: float
    age: str

    @property
    def level(self) -> int:
        """0 (gone in all layers and heads) to LEVELS (held by all)."""
        return 0 if self.share == 0 else max(1, round(LEVELS * self.share))


def stretches(row: Mapping[str, Any], characters: int) -> list[Stretch]:
    """Stretches of a generation's text, oldest first; none where the row has no trace or no text.

    row: n_prompt, n_output, age_histogram, prompt_kept_mean. A prompt that was kept whole is taken out of the bins that
    it shares with generated tokens; otherwise a bin's share is the mean over both.
    """
    counts = row.get("age_histogram")
    prompt, output = int(row["n_prompt"]), int(row["n_output"])
    if not counts or not counts[0] or not characters or output < 2:
        return []
    # the last generated token is never written to the cache
    length = prompt + output - 1
    pairs = counts[0]
    tokens = tokens_per_bin(np.array([length]), len(counts)).astype(float)
    kept = np.array(counts, dtype=float) / pairs
    if row.get("prompt_kept_mean") == 1.0:
        of_prompt = tokens - tokens_per_bin(np.array([output - 1]), len(counts))
        tokens, kept = tokens - of_prompt, kept - of_prompt
    shares = np.clip(np.divide(kept, tokens, out=np.zeros_like(kept), where=tokens > 0), 0.0, 1.0)
    found = [_stretch(index, shares, output, characters) for index in reversed(range(len(counts)))]
    return [one for one in found if one.end > one.start]


def _stretch(index: int, shares: Sequence[float] | np.ndarray[Any, Any], output: int, characters: int) -> Stretch:
    """Ages run backwards from the newest cached token, which is the last but one of the text."""
    youngest, oldest = age_from(index), age_from(index + 1) - 1
    first, last = output - 2 - oldest, output - 2 - youngest

    def place(token: int) -> int:
        return min(characters, max(0, round(characters * token / output)))

    return Stretch(place(first), place(last + 1), float(shares[index]), age_label(index))
