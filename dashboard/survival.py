"""Survival of cached tokens by age: measured from age histograms, and expected under a uniform draw. Pure functions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from policies.budget import Budget, Overflow, Protection, effective_keep, protected_tokens

Floats = npt.NDArray[np.float64]
# The law is a smooth mean over rows: more of them move no point of the line by a visible amount.
LAW_ROWS = 200


def held(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of tokens still held at the end, per cell and age bin.

    rows: cell_id, n_prompt, n_output, age_histogram (one row per generation). Returns cell_id, age_from, age, held,
    rows; the newest token (always held) and bins beyond the longest generation are left out, and so are cells whose
    histograms are empty.
    """
    lines = []
    for cell_id, mine in rows.groupby("cell_id", sort=False):
        counts = np.sum([np.asarray(histogram, dtype=float) for histogram in mine["age_histogram"]], axis=0)
        tokens = tokens_per_bin(_cached_lengths(mine), len(counts))
        # The newest token is never a candidate, so its bin counts the layer x head pairs of every row.
        pairs = counts[0] / tokens[0] if tokens[0] else 0.0
        if pairs <= 0:
            continue
        lines += [
            (cell_id, age_from(int(b)), age_label(int(b)), float(counts[b] / (tokens[b] * pairs)), len(mine))
            for b in np.flatnonzero(tokens)[1:]
        ]
    return pd.DataFrame(lines, columns=["cell_id", "age_from", "age", "held", "rows"])


def law(rows: pd.DataFrame) -> pd.DataFrame:
    """What a uniform draw keeps, mean over the tokens of all rows by age bin: age_from, held.

    rows: n_prompt, n_output, keep, interval, recent, protection, n_sink, overflow_mode of one evicting cell; at most
    LAW_ROWS of them, evenly spread, are used.
    """
    part = rows.iloc[:: max(1, len(rows) // LAW_ROWS)]
    part = part[part["keep"].notna()]
    kept, tokens = np.zeros(64), np.zeros(64)
    for row in part.to_dict("records"):
        prompt, length = int(row["n_prompt"]), int(row["n_prompt"] + row["n_output"] - 1)
        budget = Budget(int(row["keep"]), int(row["interval"]), int(row["recent"]))
        prot = protected_tokens(Protection(row["protection"]), prompt, int(row["n_sink"]))
        keep = effective_keep(budget, prompt, prot, Overflow(row["overflow_mode"]))
        shares = survival(length, prompt, keep, prot, budget)
        bins = age_bins(np.arange(length - 1, -1, -1))
        kept += np.bincount(bins, weights=shares, minlength=64)
        tokens += np.bincount(bins, minlength=64)
    present = np.flatnonzero(tokens)[1:]
    return pd.DataFrame({"age_from": [age_from(int(b)) for b in present], "held": kept[present] / tokens[present]})


def survival(length: int, admitted: int, keep: int, prot: int, budget: Budget) -> Floats:
    """Chance [length] that each position is still cached when `length` tokens have been written.

    A draw among the candidates of an event (all slots that are neither protected nor newest) keeps each of them with
    the same chance: (K' - prot - recent) / candidates, which is (K' - r - prot)/(K' - prot) from the second event on
    where recent = r (contracts.md section 1). keep is K', admitted the prompt length.
    """
    chances = np.ones(length)
    first = max(keep + budget.interval, admitted + 1)
    cached = first
    for event in range(first, length + 1, budget.interval):
        candidates = cached - prot - budget.recent
        selected = max(0, keep - prot - budget.recent)
        chances[prot : max(prot, event - budget.recent)] *= min(1.0, selected / candidates) if candidates > 0 else 1.0
        cached = keep + budget.interval
    return chances


def tokens_per_bin(lengths: npt.NDArray[np.int64], bins: int) -> npt.NDArray[np.int64]:
    """Tokens of all rows by age bin: a row of length n has one token of each age 0 .. n - 1."""
    edges = np.concatenate(([0], 2 ** np.arange(bins, dtype=np.int64)))
    return np.diff(np.minimum(lengths[:, None], edges[None, :]), axis=1).sum(axis=0)


def age_bins(ages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bin of each age, as in policies.retention.age_histogram: 0 for the newest token, else floor(log2(age)) + 1."""
    return np.frexp(ages)[1].astype(np.int64)


def age_from(index: int) -> int:
    """Smallest age of a bin: 0, 1, 2, 4, ..."""
    return 2**index // 2


def age_label(index: int) -> str:
    """`0`, `1`, `2–3`, `4–7`, ..."""
    first, last = age_from(index), 2**index - 1
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


def _cached_lengths(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    # the last generated token is never written to the cache
    return (rows["n_prompt"] + rows["n_output"] - 1).to_numpy(dtype=np.int64)
