"""From the tables of a worker to an EvictionTrace: facts per rank, merged over ranks (contracts.md section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from policies.retention import age_histogram, prompt_share
from workers.api import EvictionTrace
from workers.vllm_engine.events import EvictionCore
from workers.vllm_engine.physical import Lengths


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one rank measured of one request; see EvictionTrace for the meanings.

    share_sum, cells     sum of the prompt share over the rank's layers x heads, and their number
    cached_total, steps  sum of cached tokens per head over decode steps, and the steps
    alive                packed bits [ceil(tokens / 8)]: tokens held by a head of this rank
    """

    events: int
    overflow: bool
    share_min: float
    share_sum: float
    cells: int
    cached_peak: int
    cached_total: int
    steps: int
    ages: tuple[int, ...]
    alive: np.ndarray
    crc: int
    nan_scores: int


def measure(core: EvictionCore, request_id: str, cached: int | None = None) -> RankFacts | None:
    """Facts of a request, which is forgotten; None for one this worker does not know.

    cached   its tokens that were cached when it ended, where known: later ones do not count
    """
    state = core.requests.pop(request_id)
    if state is None:
        return None
    if cached is not None:
        core.cut(state, cached)
    requests, row = core.requests, state.row
    positions, newest = core.final_positions(state), int(requests.newest[row])
    share_min, share_mean = prompt_share(positions, state.prompt)
    cells = positions.shape[0] * positions.shape[1]
    events, crc = core.counted(state)
    alive = np.zeros(newest + 1, bool)
    alive[positions.reshape(-1).numpy()] = True
    return RankFacts(
        events=events,
        overflow=state.schedule.overflow,
        share_min=share_min,
        share_sum=share_mean * cells,
        cells=cells,
        cached_peak=int(requests.peak[row]),
        cached_total=int(requests.total[row]),
        steps=int(requests.steps[row]),
        ages=age_histogram(newest - positions),
        alive=np.packbits(alive),
        crc=crc,
        nan_scores=int(state.tally.nan_scores),
    )


def merge(ranks: Sequence[RankFacts], expected_events: int) -> EvictionTrace:
    """One trace of all ranks' heads; lengths and events are equal on every rank."""
    first = ranks[0]
    alive = np.bitwise_or.reduce([rank.alive for rank in ranks])
    crc = 0
    for rank in ranks:
        crc ^= rank.crc
    return EvictionTrace(
        events=first.events,
        expected_events=expected_events,
        prompt_kept_min=min(rank.share_min for rank in ranks),
        prompt_kept_mean=sum(rank.share_sum for rank in ranks) / sum(rank.cells for rank in ranks),
        cached_peak=first.cached_peak,
        cached_mean=first.cached_total / first.steps if first.steps else float(first.cached_peak),
        overflow=first.overflow,
        age_histogram=tuple(np.sum([rank.ages for rank in ranks], axis=0).tolist()),
        union_alive=int(np.unpackbits(alive).sum()),
        kept_crc=crc,
        nan_scores=sum(rank.nan_scores for rank in ranks),
    )


def full_trace(prompt: int, cached: int, heads: int) -> EvictionTrace:
    """Trace of a request that cannot evict, from its lengths: `cached` tokens stay in all `heads` layers x KV heads."""
    ages = age_histogram(torch.arange(cached))
    return EvictionTrace(
        events=0,
        expected_events=0,
        prompt_kept_min=1.0,
        prompt_kept_mean=1.0,
        cached_peak=cached,
        cached_mean=(prompt + 1 + cached) / 2 if cached > prompt else float(cached),
        overflow=False,
        age_histogram=tuple(count * heads for count in ages),
        union_alive=cached,
        kept_crc=0,
    )


def expected_events(lengths: Lengths, prompt: int, n_output: int) -> int:
    """Events by the formula: the newest output was sampled but never cached."""
    return lengths.events(prompt + n_output - 1)
