"""What probe records say: retrieval, log-probability, recall R and survival, each with its interval or its theory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.stats.intervals import UNKNOWN, Interval, t_interval, wilson

RESAMPLES = 4000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Recall:
    """One arm over n instances; shares and their 95 % intervals.

    retrieval  every token of the value is the most probable one under the forced prefix
    free       greedy decoding from the question gives the value
    log_prob   mean natural log-probability of the whole value
    r          sum(LP - LP deleted) / sum(LP kept - LP deleted): a ratio of sums; NaN without both ends
    """

    n: int
    retrieval: float
    retrieval_interval: Interval
    free: float
    free_interval: Interval
    log_prob: float
    log_prob_interval: Interval
    r: float
    r_interval: Interval


def recall(hits: Sequence[bool], free: Sequence[bool], logs: Floats, ends: tuple[Floats, Floats] | None) -> Recall:
    """Statistics of one arm; `ends` are the log-probabilities of the same instances deleted and kept, [n] each."""
    n = len(hits)
    r, r_interval = ratio(logs, *ends) if ends else (math.nan, UNKNOWN)
    return Recall(
        n, sum(hits) / n, wilson(sum(hits), n), sum(free) / n, wilson(sum(free), n),
        float(logs.mean()), t_interval(logs), r, r_interval,
    )  # fmt: skip


def ratio(logs: Floats, deleted: Floats, kept: Floats) -> tuple[float, Interval]:
    """R and its percentile interval over resampled instances (fixed seed); NaN where kept equals deleted."""
    gain, span = logs - deleted, kept - deleted
    if span.sum() == 0:
        return math.nan, UNKNOWN
    picks = np.random.default_rng(0).integers(0, len(logs), (RESAMPLES, len(logs)))
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = gain[picks].sum(1) / span[picks].sum(1)
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return float(gain.sum() / span.sum()), (float(low), float(high))


@dataclass(frozen=True, slots=True)
class Survival:
    """Tokens of a fact after a number of events that they were candidates of; shares.

    per_head, union  measured: in one (layer, head); in at least one head of a layer
    per_head_theory, union_theory  s^events and 1 - (1 - s^events)^heads
    """

    events: int
    per_head: float
    per_head_theory: float
    union: float
    union_theory: float
    samples: int


def survival_curve(
    alive: npt.NDArray[np.bool_], candidate_from: npt.NDArray[np.int64], chance: float
) -> list[Survival]:
    """Curves of uniform eviction: alive [N, events, L, H, tokens]; candidate_from [tokens], first event that counts."""
    _, events, _, heads, tokens = alive.shape
    rows: dict[int, list[npt.NDArray[np.bool_]]] = {}
    for token in range(tokens):
        for event in range(int(candidate_from[token]), events):
            rows.setdefault(event - int(candidate_from[token]) + 1, []).append(alive[:, event, :, :, token])
    curve = []
    for count, seen in sorted(rows.items()):
        cube = np.stack(seen)  # [tokens, N, L, H]
        theory = chance**count
        union = 1 - (1 - theory) ** heads
        curve.append(Survival(count, float(cube.mean()), theory, float(cube.any(-1).mean()), union, cube[..., 0].size))
    return curve
