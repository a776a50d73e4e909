"""Events where the cache lies: the tables of EvictionCore on the device, its selections and moves in kernels.

Nothing is read back between events. Lengths are functions of n, which the host knows; draws, ranking, moves, hashes and
positions are made by policies/kernels. The host learns a request's facts when its trace is fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.utils import torch_utils

from policies.base import Scorer
from policies.compaction import Moves, plan
from policies.draws import inplace_victims
from policies.kernels.compact import fill_holes, shift_down
from policies.kernels.kept import Ledger, settle
from policies.kernels.paged import Events, PagedCache
from policies.kernels.select import Draws, Ranking, hole_moves, kept_slots
from policies.scoring import draws, positions
from policies.select import scores_of, select
from workers.vllm_engine.events import Event, EvictionCore, Source
from workers.vllm_engine.state import Batch, RequestState

_RANKED_AS_FP32 = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class PagedSource(Source):
    """block_table  int32 [B, blocks] of the batch, on the device."""

    block_table: torch.Tensor


@dataclass(frozen=True, slots=True)
class Group:
    """Events that share their launches: requests [R], their rows of the batch and what each event is."""

    rows: list[int]
    states: list[RequestState]
    events: list[Event]


class DeviceCore(EvictionCore):
    """EvictionCore over a cache that kernels read; `cache` is set once vLLM has allocated it.

    ahead   vLLM schedules one step ahead, so that an ended request may have run one more, which cut() takes back
    """

    cache: PagedCache

    def __init__(self, *args: Any, ahead: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ahead = ahead
        table = self.requests.positions
        self._slots_ahead = torch.arange(table.shape[3], dtype=torch.int32, device=table.device)
        self.ledger = Ledger(
            table,
            torch.zeros((len(table), 4), dtype=torch.int64, device=table.device),
            torch.zeros(
                (*table.shape[:3], table.shape[3] if self.ahead else 1), dtype=torch.int32, device=table.device
            ),
            torch.tensor(self.layers, device=table.device),
            torch.tensor(self.heads, device=table.device),
        )

    def add(self, request_id: str, prompt: int, admitted: int, extra_args: Mapping[str, Any] | None) -> None:
        """Requests.add, with tables that start afresh: slot s holds token s until an event says otherwise."""
        self.requests.add(request_id, prompt, admitted, extra_args)
        row = self.requests.row(request_id)
        self.ledger.positions[row] = self._slots_ahead
        self.ledger.counted[row] = 0

    def counted(self, state: RequestState) -> tuple[int, int]:
        """As the base, from what the kernels counted."""
        bits, events, *_ = self.ledger.counted[state.row].tolist()
        return events, bits & (2**64 - 1)

    def cut(self, state: RequestState, cached: int) -> None:
        """Take back the newest token where vLLM ran one more than the `cached` ones that count.

        Raises RuntimeError when it ran more than one.
        """
        requests, row, lengths = self.requests, state.row, state.schedule.lengths
        n = int(requests.newest[row])
        if n < cached:
            return
        if n > cached or not self.ahead:
            raise RuntimeError(f"a request that ended with {cached} cached tokens holds token {n}: it ran too far")
        requests.forget_newest(row)
        replaced = lengths.in_place and n >= lengths.start
        if replaced or lengths.fires(n):
            counted = self.ledger.counted[row]
            counted[0] ^= counted[2] ^ counted[3]
            counted[1] -= 1
            held, before = self.ledger.positions[row], self.ledger.before[row]
            if not replaced:
                held.copy_(before)
            elif lengths.fires(n):
                # the shrink came with this token; before it slot s held token s
                held.copy_(self._slots_ahead.expand_as(held))
            else:
                victims = torch.from_numpy(self._victims(state, n)).to(held.device)
                held.scatter_(2, victims[..., None], before[..., :1])

    def _victims(self, state: RequestState, n: int) -> np.ndarray:
        """Slots that token n overwrote, int64 [L, H]."""
        assert state.eviction is not None
        lengths = state.schedule.lengths
        number, keep, prot, start = (np.array([f]) for f in (n, lengths.keep, state.schedule.prot, lengths.start))
        layers, heads = np.array(self.layers), np.array(self.heads)
        seeds = np.array([state.eviction.seed], np.uint64)
        return inplace_victims(seeds, layers, heads, number, keep, prot, start, lengths.interval)[0]

    def final_positions(self, state: RequestState) -> torch.Tensor:
        """As the base; the table already names the slots behind K'."""
        lengths, newest = state.schedule.lengths, int(self.requests.newest[state.row])
        if newest < lengths.start:
            return super().final_positions(state)
        return self.ledger.positions[state.row, ..., : lengths.physical(newest + 1)].to("cpu", torch.int64)

    def _fire(
        self, batch: Batch, rows: np.ndarray, computed: np.ndarray, source: Source
    ) -> list[tuple[list[int], Moves]]:
        """Launch the events of these rows; nothing is left to be moved."""
        assert isinstance(source, PagedSource)
        groups: dict[object, Group] = {}
        for row in rows.tolist():
            state = batch.states[row]
            event = self._event(state, self._slots(state, int(computed[row])))
            found = groups.setdefault(_together(event, row), Group([], [], []))
            found.rows.append(row)
            found.states.append(state)
            found.events.append(event)
        for group in groups.values():
            self._run(batch, group, computed, source)
        return []

    def _replace(self, batch: Batch, rows: np.ndarray, computed: np.ndarray) -> None:
        """Victims are drawn where they are overwritten (kernels/inplace.py)."""

    def _record(self, batch: Batch, computed: np.ndarray, query_lens: np.ndarray, cached: np.ndarray) -> None:
        """What a forward records is decided in the adapter's persistent buffers."""

    def _run(self, batch: Batch, group: Group, computed: np.ndarray, source: PagedSource) -> None:
        first, table = group.events[0], self.ledger.positions
        keep = [event.prot + event.recent + event.n_select for event in group.events]
        bits, numbers = self._staged(batch, group, keep, computed)
        index, rows, slots, prot, recent, kept, number, n, coming, counts, parity = numbers
        if self.ahead:
            self.ledger.before.index_copy_(0, rows.long(), table.index_select(0, rows))
        events = Events(
            source.block_table.index_select(0, index), rows, slots, prot, recent, kept,
            max_slots=table.shape[3], max_keep=max(keep),
            max_evicted=max(event.slots - count for event, count in zip(group.events, keep, strict=True)),
        )  # fmt: skip
        ranking = self._ranking(batch, group, computed, source, Draws(bits[0], bits[1], self.ledger.layers,
                                                                      self.ledger.heads), rows)  # fmt: skip
        if isinstance(ranking, Moves):
            self._move_rows(events.block_table[0], table[group.states[0].row], ranking)
            moves = ranking
        elif first.order:
            stay = kept_slots(events, ranking)
            shift_down(self.cache, table, events, stay)
            moves = Moves(stay, self._slots_ahead[: stay.shape[3]].expand_as(stay))
        else:
            moves = hole_moves(events, ranking)
            fill_holes(self.cache, table, events, moves)
        settle(self.ledger, events, number, n, coming, counts, parity)
        self._follow(group, moves, keep)

    def _staged(
        self, batch: Batch, group: Group, keep: list[int], computed: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Facts of the events on the device: int64 [2, R] seeds and event numbers, int32 [11, R] for _run."""
        states, events, rows = group.states, group.events, group.rows
        waiting = [0 if state.schedule.lengths.in_place else state.schedule.lengths.interval for state in states]
        number, n = [state.events for state in states], computed[rows].tolist()
        # a shrink shares its column with the token that it makes room for
        parity = [(number[i] if waiting[i] else n[i]) & 1 for i in range(len(rows))]
        columns = (
            rows, [state.row for state in states], [event.slots for event in events], [event.prot for event in events],
            [event.recent for event in events], keep, number, n, waiting, [bool(w) for w in waiting], parity,
        )  # fmt: skip
        seeds = batch.seeds[rows].view(np.int64)
        device = self.ledger.positions.device
        bits = torch_utils.async_tensor_h2d(np.stack((seeds, np.array(number, np.int64))), device=device)
        return bits, torch_utils.async_tensor_h2d(np.array(columns, np.int32), device=device)

    def _ranking(
        self,
        batch: Batch,
        group: Group,
        computed: np.ndarray,
        source: PagedSource,
        drawn: Draws,
        rows: torch.Tensor,
    ) -> Ranking | Moves:
        """What decides who stays; moves where kept slots are in an order of their own, or scores not exact in fp32."""
        event, state, policy = group.events[0], group.states[0], group.events[0].policy
        shared_run = _draws_of(policy)
        if shared_run is not None:
            return Draws(drawn.seeds, drawn.events, drawn.layers, drawn.heads, *shared_run)
        if _is(policy, positions.newest):
            return self.ledger.positions.index_select(0, rows).float()
        held = self.ledger.positions[state.row, ..., : event.slots].to(torch.int64)
        view = self._view(batch, group.rows, event, int(computed[group.rows[0]]), held, source)
        if policy.slot_order == "position":
            scores = scores_of(policy, view)
            if scores.dtype in _RANKED_AS_FP32:
                state.tally.add(scores[..., event.prot : event.slots - event.recent])
                whole = scores.float().expand(*view.shape[:2], -1)
                return torch.nn.functional.pad(whole, (0, event.slots - whole.shape[2]))[None]
        kept = select(policy, view, state.tally)
        return plan(kept, event.slots, event.order)

    def _move_rows(self, table: torch.Tensor, held: torch.Tensor, moves: Moves) -> None:
        """Move cached rows and positions of one request as `moves` says, every row read before any is written."""
        block = self.cache.keys[0].shape[1]
        head = torch.arange(self.cache.heads, device=table.device)[:, None]
        where = [(table[slots // block].long(), slots % block) for slots in (moves.src, moves.dst)]
        for layer in range(self.cache.layers):
            (source_block, source), (target_block, target) = ((b[layer], s[layer]) for b, s in where)
            for rows in (self.cache.keys[layer], self.cache.values[layer]):
                rows[target_block, target, head] = rows[source_block, source, head]
        moves.apply(held)

    def _follow(self, group: Group, moves: Moves, keep: list[int]) -> None:
        """Bring host counts and records up to date."""
        for state in group.states:
            state.events += not state.schedule.lengths.in_place
        for index, state in enumerate(group.states):
            if state.record is not None:
                assert self.requests.records is not None
                slots = group.events[index].slots
                own = moves if moves.src.dim() == 3 else Moves(moves.src[index], moves.dst[index])
                # a slot behind K' stands for no move: it is emptied afterwards
                own = Moves(*(torch.where(part < 0, slots - 1, part).long() for part in (own.src, own.dst)))
                self.requests.records.compact(state.record, own, slots, keep[index])


def _is(policy: Scorer, function: Callable[..., Any]) -> bool:
    """True for a policy whose scores are this built-in function's."""
    return type(policy).score is Scorer.score and policy.scorer == f"{function.__module__}:{function.__name__}"


def _draws_of(policy: Scorer) -> tuple[bool, int] | None:
    """(shared by heads, slots of a run) of a policy that ranks by keyed draws alone."""
    if _is(policy, draws.per_head):
        return False, 1
    if _is(policy, draws.per_layer):
        return True, 1
    if _is(policy, draws.per_block):
        return False, getattr(policy, "block")  # noqa: B009 - the function is typed for the policy that has it
    return None


def _together(event: Event, row: int) -> object:
    """What is equal for events that can share their launches."""
    drawn = _draws_of(event.policy)
    if drawn is not None or _is(event.policy, positions.newest):
        return drawn, event.order
    return row


def rows_of(cache: PagedCache, block_table: torch.Tensor) -> Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]:
    """Source.rows over this cache and a batch's block table."""
    return lambda row, slots: (cache.gather("keys", block_table[row], slots),
                               cache.gather("values", block_table[row], slots))  # fmt: skip


def stage(values: np.ndarray, out: torch.Tensor) -> None:
    """Copy host values of the same shape and type to the device, without waiting."""
    torch_utils.async_tensor_h2d(values, out=out)
