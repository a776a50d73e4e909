"""What the nulls take from a challenger: how long its tokens live, and how much its heads agree. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator.errors import UserError
from orchestrator.stats.survival import age_bins, tokens_per_bin


@dataclass(frozen=True, slots=True)
class Fit:
    """survival: share of the evictable tokens still held, by log2 bin of age; overlap as matched_age takes it.

    held_by_any, independent: share of evictable tokens that some layer and head holds, and what it would be if each
    drew for itself
    """

    survival: tuple[float, ...]
    overlap: float
    held_by_any: float
    independent: float
    rows: int


def fit(rows: pd.DataFrame, protected: bool) -> Fit:
    """Fit to the challenger's traces: n_prompt, n_output, events, age_histogram, union_alive, one row each.

    protected: the prompt is never evicted, so it is no part of the curve. Raises UserError where nothing was evicted.
    """
    # The newest token is always held, so an engine that counts ages counts it.
    counted = rows["age_histogram"].map(lambda ages: ages is not None and len(ages) > 0 and ages[0] > 0).astype(bool)
    rows = rows[counted & (rows["events"].fillna(0) > 0)]
    if rows.empty:
        raise UserError(
            "no trace of the tuning split was long enough for an eviction, so there is nothing to challenge. "
            "Choose a smaller --keep, or a task with longer answers."
        )
    histograms = np.stack([np.asarray(histogram, dtype=np.float64) for histogram in rows["age_histogram"]])
    lengths = (rows["n_prompt"] + rows["n_output"] - 1).to_numpy(np.int64)
    prompts = rows["n_prompt"].to_numpy(np.int64) if protected else np.zeros_like(lengths)
    bins, pairs = histograms.shape[1], float(histograms[:, 0].max())
    fixed = sum(
        np.bincount(age_bins(np.arange(length - prompt, length)), minlength=bins)
        for length, prompt in zip(lengths, prompts, strict=True)
    )
    tokens = tokens_per_bin(lengths, bins) - fixed
    held = histograms.sum(axis=0) / pairs - fixed
    known = np.flatnonzero(tokens > 0)
    shares = np.minimum.accumulate(np.clip(held[known] / tokens[known], 0.0, 1.0))
    evictable = float((lengths - prompts).sum())
    union = float((rows["union_alive"].to_numpy(np.float64) - prompts).sum()) / evictable
    alone = float((tokens[known] * (1 - (1 - shares) ** pairs)).sum()) / evictable
    together = float((tokens[known] * shares).sum()) / evictable
    overlap = (alone - union) / (alone - together) if alone > together else 0.0
    return Fit(tuple(map(float, shares)), float(np.clip(overlap, 0.0, 1.0)), union, alone, len(rows))
