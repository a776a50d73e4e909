"""Survival of cached tokens by age: measured from age histograms, and expected under a uniform draw. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.stats.intervals import Interval, t_interval
from policies.budget import Budget, Overflow, Protection, effective_keep, protected_tokens

Floats = npt.NDArray[np.float64]

# Columns of held(): share of an age that a layer and head still holds at the end, mean over rows weighted by tokens;
# low and high: 95 % t interval over problems of their own shares (missing without problem_id or with one problem).
HELD: Mapping[str, str] = {
    "cell_id": "object",
    "age_from": "int64",
    "age": "object",
    **dict.fromkeys(("held", "low", "high"), "float64"),
    **dict.fromkeys(("rows", "problems"), "int64"),
}
# Columns of retention(): means over rows with 95 % t intervals over problems. union_share: tokens that at least one
# layer and head still holds / tokens written; uniform_*: what independent uniform draws would give on average.
RETENTION: Mapping[str, str] = {
    "cell_id": "object",
    **dict.fromkeys(("rows", "problems", "events_min", "events_max"), "int64"),
    **dict.fromkeys(("prompt_kept", "prompt_kept_low", "prompt_kept_high", "prompt_kept_least"), "float64"),
    **dict.fromkeys(("cached_share", "union_share", "union_low", "union_high", "uniform_union_share"), "float64"),
}
# The law is a smooth mean over rows: more of them move no point of the line by a visible amount.
LAW_ROWS = 200


def held(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of tokens still held at the end, per cell and age bin; columns HELD.

    rows: cell_id, n_prompt, n_output, age_histogram (one row per generation), and problem_id for intervals. The newest
    token (always held) and bins beyond the longest generation are left out, and so are cells with empty histograms.
    """
    lines = []
    for cell_id, mine in rows.groupby("cell_id", sort=False):
        counts = np.stack([np.asarray(histogram, dtype=float) for histogram in mine["age_histogram"]])
        # The newest token is never a candidate, so its bin counts the layer x head pairs.
        pairs = counts[:, 0].max()
        if pairs <= 0:
            continue
        tokens = _tokens(_cached_lengths(mine), counts.shape[1])
        problems = mine["problem_id"].to_numpy() if "problem_id" in mine else None
        lines += [
            {
                "cell_id": cell_id,
                "age_from": age_from(b),
                "age": age_label(b),
                "held": float(counts[:, b].sum() / (tokens[:, b].sum() * pairs)),
                **_share_interval(counts[:, b] / pairs, tokens[:, b], problems),
                "rows": len(mine),
                "problems": 0 if problems is None else len(set(problems)),
            }
            for b in map(int, np.flatnonzero(tokens.sum(axis=0))[1:])
        ]
    return pd.DataFrame(lines, columns=list(HELD)).astype(dict(HELD))


def held_of(kept: pd.DataFrame, lengths: pd.DataFrame) -> pd.DataFrame:
    """held() from sums over the rows of each cell, for stores too large to look at rows; no intervals.

    kept: cell_id, kept (summed histogram of a cell); lengths: cell_id, length (tokens cached at the end), rows.
    """
    lines = []
    by_cell = dict(iter(lengths.groupby("cell_id")))
    for cell_id, counts in zip(kept["cell_id"], kept["kept"], strict=True):
        mine = by_cell.get(cell_id)
        if mine is None or not counts[0]:
            continue
        rows = mine["rows"].to_numpy(dtype=np.int64)
        per_length = _tokens(mine["length"].to_numpy(dtype=np.int64), len(counts))
        tokens = (per_length * rows[:, None]).sum(axis=0)
        pairs = counts[0] / rows.sum()
        lines += [
            (str(cell_id), age_from(b), age_label(b), float(counts[b] / (tokens[b] * pairs)), int(rows.sum()))
            for b in map(int, np.flatnonzero(tokens)[1:])
        ]
    return pd.DataFrame(lines, columns=["cell_id", "age_from", "age", "held", "rows"])


def retention(rows: pd.DataFrame) -> pd.DataFrame:
    """What eviction left at the end, per cell that evicts; columns RETENTION.

    rows: the columns of held and law, problem_id, events, prompt_kept_mean, prompt_kept_min, union_alive.
    """
    evicting = rows[rows["keep"].notna() & rows["age_histogram"].notna()]
    lines = [_retention(str(cell_id), mine) for cell_id, mine in evicting.groupby("cell_id", sort=False)]
    return pd.DataFrame(lines, columns=list(RETENTION)).astype(dict(RETENTION))


def _retention(cell_id: str, mine: pd.DataFrame) -> dict[str, object]:
    lengths = _cached_lengths(mine)
    counts = np.stack([np.asarray(histogram, dtype=float) for histogram in mine["age_histogram"]])
    pairs = counts[:, 0].max()
    problems = mine["problem_id"].to_numpy()
    prompt = mine["prompt_kept_mean"].to_numpy(np.float64)
    union = mine["union_alive"].to_numpy(np.float64) / lengths
    prompt_low, prompt_high = _problem_interval(prompt, problems)
    union_low, union_high = _problem_interval(union, problems)
    return {
        "cell_id": cell_id,
        "rows": len(mine),
        "problems": len(set(problems)),
        "events_min": int(mine["events"].min()),
        "events_max": int(mine["events"].max()),
        "prompt_kept": float(prompt.mean()),
        "prompt_kept_low": prompt_low,
        "prompt_kept_high": prompt_high,
        "prompt_kept_least": float(mine["prompt_kept_min"].min()),
        "cached_share": float((counts.sum(axis=1) / pairs / lengths).mean()) if pairs else float("nan"),
        "union_share": float(union.mean()),
        "union_low": union_low,
        "union_high": union_high,
        "uniform_union_share": _uniform_union(mine, int(pairs)) if pairs else float("nan"),
    }


def _uniform_union(rows: pd.DataFrame, pairs: int) -> float:
    """Mean share of tokens held by at least one of `pairs` independent uniform draws."""
    part = rows.iloc[:: max(1, len(rows) // LAW_ROWS)].to_dict("records")
    return float(np.mean([1 - ((1 - _row_survival(row)) ** pairs).mean() for row in part]))


def law(rows: pd.DataFrame) -> pd.DataFrame:
    """What a uniform draw keeps, mean over the tokens of all rows by age bin: age_from, held.

    rows: n_prompt, n_output, keep, interval, recent, protection, n_sink, overflow_mode of one evicting cell; at most
    LAW_ROWS of them, evenly spread, are used.
    """
    part = rows.iloc[:: max(1, len(rows) // LAW_ROWS)]
    part = part[part["keep"].notna()]
    kept, tokens = np.zeros(64), np.zeros(64)
    for row in part.to_dict("records"):
        shares = _row_survival(row)
        bins = age_bins(np.arange(shares.size - 1, -1, -1))
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


def _row_survival(row: Mapping[Hashable, Any]) -> Floats:
    """survival of one stored generation."""
    prompt, length = int(row["n_prompt"]), int(row["n_prompt"] + row["n_output"] - 1)
    budget = Budget(int(row["keep"]), int(row["interval"]), int(row["recent"]))
    prot = protected_tokens(Protection(row["protection"]), prompt, int(row["n_sink"]))
    keep = effective_keep(budget, prompt, prot, Overflow(row["overflow_mode"]))
    return survival(length, prompt, keep, prot, budget)


def tokens_per_bin(lengths: npt.NDArray[np.int64], bins: int) -> npt.NDArray[np.int64]:
    """Tokens of all rows by age bin: a row of length n has one token of each age 0 .. n - 1."""
    counts: npt.NDArray[np.int64] = _tokens(lengths, bins).sum(axis=0)
    return counts


def _tokens(lengths: npt.NDArray[np.int64], bins: int) -> npt.NDArray[np.int64]:
    """The same for each row: [rows, bins]."""
    edges = np.concatenate(([0], 2 ** np.arange(bins, dtype=np.int64)))
    return np.diff(np.minimum(lengths[:, None], edges[None, :]), axis=1)


def _share_interval(
    kept: Floats, tokens: npt.NDArray[np.int64], problems: npt.NDArray[np.object_] | None
) -> dict[str, float]:
    """t interval over problems of the share kept / tokens of the rows that have such tokens; within [0, 1]."""
    some = tokens > 0
    if problems is None:
        return {"low": float("nan"), "high": float("nan")}
    low, high = _problem_interval(kept[some] / tokens[some], problems[some])
    return {"low": max(0.0, low), "high": min(1.0, high)}


def _problem_interval(values: Floats, problems: npt.NDArray[np.object_]) -> Interval:
    """t interval of the mean over problems of their rows' mean values."""
    return t_interval(np.asarray(pd.Series(values).groupby(problems).mean(), dtype=np.float64))


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
