"""Per-request eviction state of one worker: who is where in the tables, and what was counted so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from policies.base import Needs, Policy, Replacer, Scorer
from policies.registry import PolicyError, build
from policies.select import Tally
from workers.api import Eviction
from workers.vllm_engine.physical import reserved_tokens, unbounded_lengths
from workers.vllm_engine.records import CPU, Records, Wanted
from workers.vllm_engine.settings import EngineSettings, Schedule, SettingsError, from_extra_args, resolve

ALWAYS_GIVEN = ("positions", "order")
"""Needs that every engine that evicts gives."""


@dataclass(slots=True)
class RequestState:
    """One admitted request.

    row       its row in the tables
    prompt    P; admitted is A; both in tokens
    policy    None when the request does not evict
    events    selections made, or tokens overwritten in place
    crc       kept_crc so far
    tally     what its selections met
    record    its record in records.Records, None when its policy needs none
    """

    row: int
    prompt: int
    admitted: int
    eviction: Eviction | None
    policy: Policy | None
    schedule: Schedule
    events: int = 0
    crc: int = 0
    tally: Tally = field(default_factory=Tally)
    record: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Schedules of the requests of one batch, aligned with its rows; int64 unless said otherwise.

    start, keep, interval, prot  length algebra [B]; limit [B] = most tokens the request may hold
    seeds [B] uint64; in_place [B] bool; rows [B] = rows in the tables; wanted is None when no request records
    """

    request_ids: tuple[str, ...]
    states: tuple[RequestState, ...]
    start: np.ndarray
    keep: np.ndarray
    interval: np.ndarray
    prot: np.ndarray
    limit: np.ndarray
    seeds: np.ndarray
    in_place: np.ndarray
    rows: np.ndarray
    wanted: Wanted | None


class Requests:
    """The requests of one worker and the tables they own rows of.

    positions   int32 [rows, L, H, capacity]: logical position in every slot; valid below the last event's K', the slots
                behind it follow from the length algebra
    peak, total, steps  int64 [rows]: most cached tokens per head, their sum over decode steps, and the steps
    newest      int64 [rows]: logical position of the newest token seen, -1 before the first
    latest, highest  int64 [rows]: cached tokens in the newest step, and `peak` before it
    records     None in an engine whose policies need nothing recorded
    """

    def __init__(
        self,
        settings: EngineSettings,
        layers: int,
        heads: int,
        max_requests: int,
        records: Records | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.settings, self.records = settings, records
        # finished requests keep their row until their trace is fetched
        rows = 2 * max_requests
        self.positions = torch.zeros((rows, layers, heads, settings.capacity), dtype=torch.int32, device=device)
        self.peak, self.total, self.steps, self.newest = (np.zeros(rows, np.int64) for _ in range(4))
        self.latest, self.highest = (np.zeros(rows, np.int64) for _ in range(2))
        self._free = list(range(rows - 1, -1, -1))
        self._states: dict[str, RequestState] = {}
        self._finished: dict[str, RequestState] = {}
        self._batch: Batch | None = None

    def add(self, request_id: str, prompt: int, admitted: int, extra_args: Mapping[str, Any] | None) -> None:
        """Admit a request, or a preempted one again with its outputs as part of `admitted`. Raises SettingsError."""
        old = self._states.pop(request_id, None) or self._finished.pop(request_id, None)
        if old is not None:
            self._free.append(old.row)
            self._free_record(old)
        self._batch = None
        eviction = from_extra_args(extra_args)
        policy, schedule = resolve_policy(eviction, prompt, admitted, self.settings)
        row = self._take_row()
        record = self.records.take() if self.records is not None and policy is not None and recorded(policy) else None
        self._states[request_id] = RequestState(row, prompt, admitted, eviction, policy, schedule, record=record)
        self.peak[row] = self.total[row] = self.steps[row] = 0
        self.newest[row] = -1

    def row(self, request_id: str) -> int:
        """Row of a request that runs."""
        return self._states[request_id].row

    def forget_newest(self, row: int) -> None:
        """Take back the newest decode step of a row, once."""
        self.peak[row] = self.highest[row]
        self.total[row] -= self.latest[row]
        self.steps[row] -= 1
        self.newest[row] -= 1

    def finish(self, request_ids: Sequence[str]) -> None:
        """Requests that will not run again; their state waits for pop()."""
        for request_id in request_ids:
            state = self._states.pop(request_id, None)
            if state is not None:
                self._free_record(state)
                self._finished[request_id] = state
                self._batch = None

    def pop(self, request_id: str) -> RequestState | None:
        """Remove a request and free its row, which keeps its contents until the next add()."""
        state = self._states.pop(request_id, None) or self._finished.pop(request_id, None)
        if state is not None:
            self._free.append(state.row)
            self._free_record(state)
            self._batch = None
        return state

    def batch(self, request_ids: Sequence[str]) -> Batch:
        """The arrays of these requests; kept from the previous step while the batch is the same."""
        if self._batch is None or self._batch.request_ids != tuple(request_ids):
            self._batch = self._gather(tuple(request_ids))
        return self._batch

    def _gather(self, request_ids: tuple[str, ...]) -> Batch:
        states = tuple(self._states[request_id] for request_id in request_ids)
        lengths = [state.schedule.lengths for state in states]
        settings = self.settings

        def column(values: Sequence[int]) -> np.ndarray:
            return np.array(values, np.int64)

        return Batch(
            request_ids,
            states,
            start=column([item.start for item in lengths]),
            keep=column([item.keep for item in lengths]),
            interval=column([item.interval for item in lengths]),
            prot=column([state.schedule.prot for state in states]),
            limit=column([reserved_tokens(settings.keep_ceiling, settings.interval, s.admitted) for s in states]),
            seeds=np.array([state.eviction.seed if state.eviction else 0 for state in states], np.uint64),
            in_place=np.array([item.in_place for item in lengths], bool),
            rows=column([state.row for state in states]),
            wanted=_wanted(states),
        )

    def _free_record(self, state: RequestState) -> None:
        if self.records is not None and state.record is not None:
            self.records.free(state.record)
            state.record = None

    def _take_row(self) -> int:
        if not self._free:
            # nobody fetched the traces of these; the oldest goes
            oldest = next(iter(self._finished))
            self._free.append(self._finished.pop(oldest).row)
        return self._free.pop()


def resolve_policy(
    eviction: Eviction | None, prompt: int, admitted: int, settings: EngineSettings
) -> tuple[Policy | None, Schedule]:
    """Policy and schedule of a request. Raises SettingsError for what this engine cannot do, by name."""
    if eviction is None:
        return None, Schedule(prompt, unbounded_lengths(), overflow=False)
    try:
        policy = build(eviction.policy, eviction.params)
    except PolicyError as error:
        raise SettingsError(str(error)) from None
    if not policy.evicts:
        return None, Schedule(prompt, unbounded_lengths(), overflow=False)
    if not isinstance(policy, Scorer | Replacer):
        raise SettingsError(f"policy {eviction.policy!r} is neither a Scorer nor a Replacer")
    if eviction.keep > settings.keep_ceiling:
        raise SettingsError(f"keep {eviction.keep} exceeds the engine's keep ceiling {settings.keep_ceiling}")
    if prompt > settings.max_prompt_tokens:
        raise SettingsError(
            f"prompt of {prompt} tokens exceeds the engine's max_prompt_tokens {settings.max_prompt_tokens}"
        )
    lacking = lacking_needs(policy.needs, settings.needs)
    if lacking:
        raise SettingsError(f"policy {eviction.policy!r} needs {', '.join(lacking)}, which this engine does not record")
    in_place = isinstance(policy, Replacer)
    return policy, resolve(eviction, prompt, admitted, settings.interval, in_place=in_place)


def lacking_needs(policy: Needs, engine: Needs) -> list[str]:
    """Needs, as `name value`, that an engine made for the needs `engine` does not give."""
    lacking = []
    for name, value in asdict(policy).items():
        if name not in ALWAYS_GIVEN and level(getattr(engine, name)) < level(value):
            lacking.append(name if value is True else f"{name} {value}")
    return lacking


def level(need: Any) -> int:
    """How much a field of Needs asks for, comparable among values of that field."""
    return ("", "step", "prefill").index(need) if isinstance(need, str) else int(need)


def recorded(policy: Policy) -> bool:
    """True when something of the request's forwards must be kept for its events."""
    needs = policy.needs
    return bool(needs.recent_queries or needs.attention or needs.slot_state)


def reads_prefix_cache(policy: Policy | None, schedule: Schedule, prompt: int) -> bool:
    """False where cached prompt blocks must not serve a request.

    Its events overwrite prompt blocks, or its policy needs attention or queries of prompt tokens whose forward a hit
    would skip: the newest queries at the first event are the prompt's when fewer tokens than the window were decoded.
    """
    if policy is None:
        return True
    if schedule.prot < prompt or policy.needs.attention == "prefill":
        return False
    return schedule.lengths.start - prompt >= policy.needs.recent_queries


def _wanted(states: Sequence[RequestState]) -> Wanted | None:
    if all(state.record is None for state in states):
        return None
    needs = [state.policy.needs if state.record is not None and state.policy else Needs() for state in states]
    return Wanted(
        records=np.array([-1 if state.record is None else state.record for state in states], np.int64),
        prompt=np.array([state.prompt for state in states], np.int64),
        queries=np.array([need.recent_queries > 0 for need in needs], bool),
        steps=np.array([bool(need.attention) for need in needs], bool),
        prompts=np.array([need.attention == "prefill" for need in needs], bool),
    )
