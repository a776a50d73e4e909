"""The requests of one worker: resolved plans, slot-to-position tables and counters. Runner-independent, numpy only.

A request owns one index of the pool while it runs; per-step work is vectorised over indices, because on a CPU the
number of calls decides what eviction costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies import retention
from policies.base import Scorer
from policies.draws import inplace_victims
from workers.api import EvictionTrace
from workers.vllm_engine.request_args import Plan

NEVER = 2**62
"""First event of a request that does not evict."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The KV heads this worker holds, by global index: draws and telemetry are keyed by them.

    layers [L], heads [H] int64;  interval in tokens
    """

    layers: np.ndarray
    heads: np.ndarray
    interval: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one engine step does to the rows of its batch, all arrays [B].

    cached    physical length that the row's attention reads
    slots     slot of the row's token; -1 where it differs per head (in place)
    rewrite   rows whose logical length or slot must be replaced
    fires     rows with an event before this forward
    n         index of the row's newest token
    """

    index: np.ndarray
    n: np.ndarray
    cached: np.ndarray
    slots: np.ndarray
    rewrite: np.ndarray
    fires: np.ndarray


class Requests:
    """Pool of running requests. `capacity` bounds the slots of any of them, in tokens."""

    def __init__(self, geometry: Geometry, size: int, capacity: int) -> None:
        self.geometry = geometry
        self._index: dict[str, int] = {}
        self._capacity = capacity
        self._allocate(size)

    def _allocate(self, size: int) -> None:
        shape = (size, len(self.geometry.layers), len(self.geometry.heads), self._capacity)
        self.plans: list[Plan | None] = [None] * size
        self.positions = np.zeros(shape, dtype=np.int32)
        self.first = np.full(size, NEVER, dtype=np.int64)
        self.keep = np.zeros(size, dtype=np.int64)
        self.admitted = np.zeros(size, dtype=np.int64)
        self.prot = np.zeros(size, dtype=np.int64)
        self.seeds = np.zeros(size, dtype=np.uint64)
        self.in_place = np.zeros(size, dtype=bool)
        self.newest = np.zeros(size, dtype=np.int64)
        self.events = np.zeros(size, dtype=np.int64)
        self.steps = np.zeros(size, dtype=np.int64)
        self.cached_sum = np.zeros(size, dtype=np.int64)
        self.cached_peak = np.zeros(size, dtype=np.int64)
        self.crc = np.zeros(size, dtype=np.uint64)
        self._free = list(range(size - 1, -1, -1))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._index

    def add(self, request_id: str, plan: Plan | None, admitted: int) -> None:
        """Take a request in; a resumed one starts anew from its admitted tokens."""
        self.drop(request_id)
        if not self._free:
            raise RuntimeError(f"more requests run than the {len(self.plans)} this worker was sized for")
        i = self._index[request_id] = self._free.pop()
        self.plans[i] = plan
        self.admitted[i] = admitted
        for column in (self.events, self.steps, self.cached_sum, self.cached_peak, self.crc, self.newest):
            column[i] = 0
        self.first[i], self.keep[i], self.prot[i], self.seeds[i], self.in_place[i] = NEVER, 0, 0, 0, False
        if plan is not None:
            self.first[i], self.keep[i] = plan.lengths.first, plan.lengths.keep
            self.prot[i], self.seeds[i] = plan.prot, np.uint64(plan.seed)
            self.in_place[i] = plan.lengths.in_place
            self.positions[i] = np.arange(self._capacity, dtype=np.int32)

    def drop(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        i = self._index.pop(request_id, None)
        if i is not None:
            self.plans[i] = None
            self._free.append(i)

    def step(self, request_ids: Sequence[str], seq_lens: np.ndarray, query_lens: np.ndarray) -> Step:
        """Plan one step from logical lengths [B]; updates the counters of decoding rows."""
        index = np.fromiter((self._index[r] for r in request_ids), dtype=np.int64, count=len(request_ids))
        n = seq_lens.astype(np.int64) - 1
        first, keep, interval = self.first[index], self.keep[index], self.geometry.interval
        decode = (query_lens == 1) & (n >= self.admitted[index])
        past = decode & (n >= first)
        in_place = past & self.in_place[index]
        phase = (n - first) % interval
        slots = np.where(past, np.where(in_place, -1, keep + phase), n)
        cached = np.where(past, np.where(in_place, keep, keep + phase + 1), n + 1)
        shrink = in_place & (n == first) & (first > keep)
        rows = index[decode]
        self.newest[rows] = n[decode]
        self.steps[rows] += 1
        self.cached_sum[rows] += cached[decode]
        self.cached_peak[rows] = np.maximum(self.cached_peak[rows], cached[decode])
        return Step(index, n, cached, slots, past, (past & ~in_place & (phase == 0)) | shrink)

    def overwrite(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """In-place rows of a step and their victims: (rows [B'], slots [B', L, H]); books tables, counters and crc."""
        rows = np.flatnonzero(step.slots < 0)
        if not len(rows):
            return rows, np.empty((0, 0, 0), dtype=np.int64)
        index, n, geometry = step.index[rows], step.n[rows], self.geometry
        victims = inplace_victims(
            self.seeds[index],
            geometry.layers,
            geometry.heads,
            n,
            self.keep[index],
            self.prot[index],
            self.first[index],
            geometry.interval,
        )
        at = (index[:, None, None], *np.ogrid[: victims.shape[1], : victims.shape[2]], victims)
        lost = self.positions[at]
        self.positions[at] = n[:, None, None]
        self.events[index] += 1
        self.crc[index] ^= retention.victim_crc(n, geometry.layers, geometry.heads, lost)
        return rows, victims

    def trace(self, request_id: str) -> EvictionTrace | None:
        """What eviction did so far; None for a request that is unknown or does not evict."""
        i = self._index.get(request_id)
        plan = self.plans[i] if i is not None else None
        if i is None or plan is None:
            return None
        held, newest = self._held(i, plan), max(int(self.newest[i]), int(self.admitted[i]) - 1)
        low, mean = retention.prompt_share(held, plan.prompt)
        steps = int(self.steps[i])
        return EvictionTrace(
            events=int(self.events[i]),
            expected_events=plan.lengths.events(newest - int(self.admitted[i]) + 2),
            prompt_kept_min=low,
            prompt_kept_mean=mean,
            cached_peak=int(self.cached_peak[i]) if steps else int(self.admitted[i]),
            cached_mean=float(self.cached_sum[i]) / steps if steps else float(self.admitted[i]),
            overflow=plan.overflow,
            age_histogram=retention.age_histogram(newest - held),
            union_alive=retention.union_alive(held),
            kept_crc=int(self.crc[i]),
        )

    def before_event(self, i: int, n: int) -> int:
        """Slots filled when token n's event starts; brings the table up to date for those appended since the last."""
        if n == self.first[i]:
            return n
        keep, interval = int(self.keep[i]), self.geometry.interval
        self.positions[i, :, :, keep : keep + interval] = np.arange(n - interval, n, dtype=np.int32)
        return keep + interval

    def _held(self, i: int, plan: Plan) -> np.ndarray:
        """Logical positions [L, H, S] of what is cached after the newest token."""
        newest, first = int(self.newest[i]), int(self.first[i])
        if newest < first:
            return self.positions[i, :, :, : max(newest + 1, int(self.admitted[i]))]
        keep = int(self.keep[i])
        if plan.lengths.in_place:
            return self.positions[i, :, :, :keep]
        phase = (newest - first) % self.geometry.interval
        self.positions[i, :, :, keep : keep + phase + 1] = np.arange(newest - phase, newest + 1, dtype=np.int32)
        return self.positions[i, :, :, : keep + phase + 1]


def order_matters(plan: Plan) -> bool:
    """Whether slots must stay chronological: the policy's need, or the one shrink of an in-place request."""
    return plan.policy.needs.order or not isinstance(plan.policy, Scorer)
