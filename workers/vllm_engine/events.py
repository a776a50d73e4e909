"""One step of eviction, whatever runs the model: lengths, events and victims of a batch before its forward.

A runner's adapter calls `EvictionCore.step` with the batch's rows, moves the rows it is told to move and hands the
physical lengths to its attention backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch

from policies.base import Replacer, Scorer, resolve_dotted
from policies.calibration import Calibration
from policies.compaction import Moves, plan
from policies.draws import Draw
from policies.registry import build
from policies.retention import kept_crcs, victim_crc
from policies.select import select
from policies.view import CacheView
from workers.vllm_engine.physical import physical_slots
from workers.vllm_engine.records import CPU, Recording, Records
from workers.vllm_engine.settings import EngineSettings
from workers.vllm_engine.state import Batch, Requests, RequestState

Rows = tuple[torch.Tensor, torch.Tensor]
"""Keys and values [L, H, slots, D]."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the forward of one batch needs.

    cached    int64 [B]: cached tokens per KV head while the row's newest token attends
    slots     int64 [B]: slot of the row's newest token; undefined for prefill rows and for `replacing` rows
    decode    int64 [B']: batch rows that decode one token
    replacing int64 [B'']: batch rows whose token overwrites victims, int64 [B'', L, H]
    moves     batch rows [R] and their row moves [R * L, H, M]; every source is read before any target is written
    recording what the forward records for later events, None for nothing
    """

    cached: np.ndarray
    slots: np.ndarray
    decode: np.ndarray
    replacing: np.ndarray
    victims: np.ndarray | None
    moves: list[tuple[list[int], Moves]] = field(default_factory=list)
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What must agree for two requests to share one selection; `slots` cached tokens per head before it."""

    policy: Scorer
    slots: int
    prot: int
    recent: int
    n_select: int
    order: bool


@dataclass(frozen=True, slots=True)
class Source:
    """How to read what a batch's requests hold.

    rows       (batch row, slots) -> keys and values of its first slots
    token_ids  (batch row, tokens) -> int64 [tokens], the ids of its first tokens
    """

    rows: Callable[[int, int], Rows]
    token_ids: Callable[[int, int], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredView(CacheView):
    """A view whose larger tensors are read when a policy asks for them, once each.

    sources   tensor by name
    """

    sources: Mapping[str, Callable[[], torch.Tensor]]

    def need(self, name: str) -> torch.Tensor:
        """As CacheView.need."""
        source = self.sources.get(name)
        return CacheView.need(self, name) if source is None else source()


class EvictionCore:
    """Eviction of one worker.

    layers, heads  global indices of what this worker holds
    records        tables for policies that need more than the cache
    calibration    the model's, where settings.needs asks for it
    device         where the cache and the tables are
    """

    def __init__(
        self,
        settings: EngineSettings,
        layers: Sequence[int],
        heads: Sequence[int],
        max_requests: int,
        records: Records | None = None,
        calibration: Calibration | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.layers, self.heads = tuple(layers), tuple(heads)
        self.requests = Requests(settings, len(self.layers), len(self.heads), max_requests, records, device)
        self.calibration = calibration
        self._layer_index, self._head_index = np.array(self.layers, np.int64), np.array(self.heads, np.int64)
        shrink_policy = build("random", {})
        assert isinstance(shrink_policy, Scorer)
        self._shrink_policy: Scorer = shrink_policy

    def step(
        self,
        request_ids: Sequence[str],
        computed: np.ndarray,
        query_lens: np.ndarray,
        source: Source,
    ) -> Step:
        """Lengths, selections and victims before the forward of a batch.

        computed    int64 [B], n: tokens whose rows are cached; query_lens int64 [B]: tokens computed in this forward
        Raises RuntimeError when a request that does not evict outgrows its blocks.
        """
        batch, requests = self.requests.batch(request_ids), self.requests
        decodes = query_lens == 1
        late = decodes & (computed >= batch.start)
        slots = physical_slots(computed, batch.start, batch.keep, batch.interval)
        cached = np.where(decodes, slots + 1, computed + query_lens)
        cached[late & batch.in_place] = batch.keep[late & batch.in_place]
        if (cached > batch.limit).any():
            worst = int(np.argmax(cached - batch.limit))
            raise RuntimeError(
                f"request {batch.request_ids[worst]!r} holds {cached[worst]} tokens, "
                f"its blocks allow {batch.limit[worst]}"
            )
        requests.latest[batch.rows], requests.highest[batch.rows] = cached, requests.peak[batch.rows]
        requests.peak[batch.rows] = np.maximum(requests.peak[batch.rows], cached)
        requests.newest[batch.rows] = computed + query_lens - 1
        decode = np.flatnonzero(decodes)
        requests.total[batch.rows[decode]] += cached[decode]
        requests.steps[batch.rows[decode]] += 1
        moves = self._fire(batch, self._firing(batch, late, computed), computed, source)
        replacing = np.flatnonzero(late & batch.in_place)
        victims = self._replace(batch, replacing, computed) if len(replacing) else None
        return Step(cached, slots, decode, replacing, victims, moves, self._record(batch, computed, query_lens, cached))

    def _record(
        self, batch: Batch, computed: np.ndarray, query_lens: np.ndarray, cached: np.ndarray
    ) -> Recording | None:
        if self.requests.records is None or batch.wanted is None:
            return None
        starts = np.cumsum(query_lens) - query_lens
        return self.requests.records.plan(batch.wanted, starts, query_lens, computed, cached)

    def _firing(self, batch: Batch, late: np.ndarray, computed: np.ndarray) -> np.ndarray:
        """Batch rows with an event before this forward: physical.Lengths.fires over the batch."""
        periodic = (computed - batch.start) % batch.interval == 0
        shrinking = (computed == batch.start) & (batch.start > batch.keep)
        return np.flatnonzero(late & np.where(batch.in_place, shrinking, periodic))

    def _fire(
        self, batch: Batch, rows: np.ndarray, computed: np.ndarray, source: Source
    ) -> list[tuple[list[int], Moves]]:
        """Select for the rows with an event and bring their tables up to date; the caller moves the cached rows.

        Requests that look alike are one view, their layers stacked: calls, not arithmetic, are what an event costs.
        """
        groups: dict[object, list[int]] = {}
        for row in rows.tolist():
            state, n = batch.states[row], int(computed[row])
            slots = self._slots(state, n)
            event = self._event(state, slots)
            # behind the last event's K', or everywhere before the first, slots follow from the length algebra
            fresh = slots if n == state.schedule.lengths.start else state.schedule.lengths.interval
            self.requests.positions[state.row, ..., slots - fresh : slots] = torch.arange(
                n - fresh, n, dtype=torch.int32
            )
            groups.setdefault(event if event.policy.rowwise else row, []).append(row)
        return [(group, self._select(batch, group, computed, source)) for group in groups.values()]

    def _event(self, state: RequestState, slots: int) -> Event:
        lengths, prot = state.schedule.lengths, state.schedule.prot
        assert state.eviction is not None
        if lengths.in_place:
            policy, recent, order = self._shrink_policy, lengths.interval, True
        else:
            assert isinstance(state.policy, Scorer)
            policy, recent, order = state.policy, state.eviction.recent, state.policy.needs.order
        return Event(policy, slots, prot, recent, lengths.keep - prot - recent, order)

    def _select(self, batch: Batch, group: list[int], computed: np.ndarray, source: Source) -> Moves:
        """One selection for a group of alike requests: moves [R * L, H, M]."""
        states = [batch.states[row] for row in group]
        count, layers, heads = len(group), len(self.layers), len(self.heads)
        event = self._event(states[0], self._slots(states[0], int(computed[group[0]])))
        tables = torch.tensor([state.row for state in states])
        positions = self.requests.positions[tables, ..., : event.slots].to(torch.int64)
        positions = positions.view(count * layers, heads, event.slots)
        events = np.array([state.events for state in states])
        view = self._view(batch, group, event, int(computed[group[0]]), positions, source)
        # requests that share a selection rank draws and positions, which are never NaN
        kept = select(event.policy, view, states[0].tally)
        logical = positions.gather(2, kept).view(count, layers, heads, -1)
        for state, crc in zip(states, kept_crcs(events, self.layers, self.heads, logical).tolist(), strict=True):
            state.crc ^= crc
            state.events += not state.schedule.lengths.in_place
        moves = plan(kept, event.slots, event.order)
        moves.apply(positions)
        if states[0].record is not None:
            assert self.requests.records is not None
            self.requests.records.compact(states[0].record, moves, event.slots, kept.shape[2])
        after = positions.view(count, layers, heads, event.slots)[..., : kept.shape[2]]
        self.requests.positions[tables, ..., : kept.shape[2]] = after.to(torch.int32)
        return moves

    def _view(
        self, batch: Batch, group: list[int], event: Event, t: int, positions: torch.Tensor, source: Source
    ) -> GatheredView:
        """One view of a group of alike requests; positions int64 [R * L, H, S]."""
        states, count = [batch.states[row] for row in group], len(group)
        events = np.array([state.events for state in states])

        def per_layer(values: np.ndarray) -> np.ndarray:
            return np.repeat(values.astype(np.uint64), len(self.layers))[:, None, None]

        view = GatheredView(
            shape=(count * len(self.layers), len(self.heads), event.slots),
            prot=event.prot,
            recent=event.recent,
            n_select=event.n_select,
            t=t,
            layers=self.layers * count,
            heads=self.heads,
            draw=Draw(
                per_layer(batch.seeds[group]), per_layer(events), self.layers * count, self.heads,
                device=positions.device,
            ),
            positions=positions,
            calibration=self.calibration,
            sources=self._sources(states[0], event, group[0], t, positions, source),
        )  # fmt: skip
        return self._observe(states[0], event, view) if event.policy.needs.slot_state else view

    def _observe(self, state: RequestState, event: Event, view: GatheredView) -> GatheredView:
        """The view with the slots' state of this event, which is stored too."""
        records = self.requests.records
        assert records is not None
        assert records.slot_state is not None
        stored = records.slot_state[:, state.record, :, : event.slots]
        view = replace(view, slot_state=event.policy.observe(replace(view, slot_state=stored)))
        stored.copy_(view.need("slot_state"))
        return view

    def _sources(
        self, state: RequestState, event: Event, row: int, t: int, positions: torch.Tensor, source: Source
    ) -> dict[str, Callable[[], torch.Tensor]]:
        """Readers of what the policy of one request needs besides its positions."""
        rows = cache(lambda: source.rows(row, event.slots))
        sources = {"keys": lambda: rows()[0], "values": lambda: rows()[1]}
        records, record, needs = self.requests.records, state.record, event.policy.needs
        if needs.token_ids:
            sources["token_ids"] = lambda: source.token_ids(row, t)[positions]
        if records is None or record is None:
            return sources

        if needs.recent_queries:
            sources["queries"] = lambda: records.recent(record, t, needs.recent_queries)
        if needs.attention:
            mass = records.mass
            assert mass is not None, "requests whose needs this engine does not record are refused"
            sources["attention"] = lambda: mass[:, record, :, : event.slots]
        return sources

    def _slots(self, state: RequestState, n: int) -> int:
        """Cached tokens per head just before the event of token n."""
        lengths = state.schedule.lengths
        return n if n == lengths.start else lengths.keep + lengths.interval

    def _replace(self, batch: Batch, rows: np.ndarray, computed: np.ndarray) -> np.ndarray | None:
        """Victims of in-place rows, int64 [B'', L, H], written to the tables; None where the write draws them."""
        n, positions = computed[rows], self.requests.positions
        for row in rows[(n == batch.start[rows]) & (n == batch.keep[rows])]:
            keep = int(batch.keep[row])
            positions[batch.rows[row], ..., :keep] = torch.arange(keep, dtype=torch.int32)
        policies = {type(batch.states[row].policy) for row in rows}
        assert len(policies) == 1, "one engine runs one Replacer"
        replacer = batch.states[rows[0]].policy
        assert isinstance(replacer, Replacer)
        victims: np.ndarray = resolve_dotted(replacer.victim_slots)(
            batch.seeds[rows], self._layer_index, self._head_index, n, batch.keep[rows], batch.prot[rows],
            batch.start[rows], self.requests.settings.interval,
        )  # fmt: skip
        table = positions.numpy()
        where = (
            batch.rows[rows][:, None, None],
            np.arange(len(self.layers))[:, None],
            np.arange(len(self.heads)),
            victims,
        )
        crcs = victim_crc(n, self.layers, self.heads, table[where])
        table[where] = n[:, None, None]
        for row, crc in zip(rows.tolist(), crcs.tolist(), strict=True):
            state = batch.states[row]
            state.events += 1
            state.crc ^= crc
        return victims

    def counted(self, state: RequestState) -> tuple[int, int]:
        """Events, or tokens overwritten in place, and kept_crc of a request so far."""
        return state.events, state.crc

    def cut(self, state: RequestState, cached: int) -> None:
        """Take back what was done for tokens from `cached` on; nothing where vLLM never runs a step too many."""

    def final_positions(self, state: RequestState) -> torch.Tensor:
        """Logical positions cached at the end, int64 [L, H, cached]."""
        lengths, newest = state.schedule.lengths, int(self.requests.newest[state.row])
        table = self.requests.positions[state.row]
        if newest < lengths.start:
            return torch.arange(newest + 1).expand(*table.shape[:2], newest + 1)
        if lengths.in_place:
            return table[..., : lengths.keep].to(torch.int64)
        tail = (newest - lengths.start) % lengths.interval + 1
        ages = torch.arange(newest + 1 - tail, newest + 1).expand(*table.shape[:2], tail)
        return torch.cat((table[..., : lengths.keep].to(torch.int64), ages), dim=2)
