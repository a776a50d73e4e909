"""One step of eviction, whatever runs the model: lengths, events and victims of a batch before its forward.

A runner's adapter calls `EvictionCore.step` with the batch's rows, moves the rows it is told to move and hands the
physical lengths to its attention backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from policies.base import Replacer, Scorer, resolve_dotted
from policies.compaction import Moves, plan
from policies.draws import Draw
from policies.registry import build
from policies.retention import kept_crc, victim_crc
from policies.select import select
from policies.view import CacheView
from workers.vllm_engine.physical import physical_slots
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
    moves     row moves by batch row; every source is read before any target is written
    """

    cached: np.ndarray
    slots: np.ndarray
    decode: np.ndarray
    replacing: np.ndarray
    victims: np.ndarray | None
    moves: list[tuple[int, Moves]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredView(CacheView):
    """A view whose keys and values are read from the cache when a policy asks for them.

    gather   () -> (keys, values), each [L, H, S, D]
    """

    gather: Callable[[], Rows]

    def need(self, name: str) -> torch.Tensor:
        """As CacheView.need; reading either of keys and values reads both."""
        if name in ("keys", "values"):
            keys, values = self.gather()
            return keys if name == "keys" else values
        return CacheView.need(self, name)


class EvictionCore:
    """Eviction of one worker. `layers` and `heads` are the global indices of what this worker holds."""

    def __init__(
        self, settings: EngineSettings, layers: Sequence[int], heads: Sequence[int], max_requests: int
    ) -> None:
        self.layers, self.heads = tuple(layers), tuple(heads)
        self.requests = Requests(settings, len(self.layers), len(self.heads), max_requests)
        self._layer_index, self._head_index = np.array(self.layers, np.int64), np.array(self.heads, np.int64)
        shrink_policy = build("random", {})
        assert isinstance(shrink_policy, Scorer)
        self._shrink_policy: Scorer = shrink_policy

    def step(
        self,
        request_ids: Sequence[str],
        computed: np.ndarray,
        query_lens: np.ndarray,
        gather: Callable[[int, int], Rows],
    ) -> Step:
        """Lengths, selections and victims before the forward of a batch.

        computed    int64 [B], n: tokens whose rows are cached; query_lens int64 [B]: tokens computed in this forward
        gather      (batch row, slots) -> keys and values of its first slots
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
        np.maximum.at(requests.peak, batch.rows, cached)
        np.maximum.at(requests.newest, batch.rows, computed + query_lens - 1)
        decode = np.flatnonzero(decodes)
        requests.total[batch.rows[decode]] += cached[decode]
        requests.steps[batch.rows[decode]] += 1
        moves = [
            (int(row), self._fire(batch, int(row), computed, gather)) for row in self._firing(batch, late, computed)
        ]
        replacing = np.flatnonzero(late & batch.in_place)
        victims = self._replace(batch, replacing, computed) if len(replacing) else None
        return Step(cached, slots, decode, replacing, victims, moves)

    def _firing(self, batch: Batch, late: np.ndarray, computed: np.ndarray) -> np.ndarray:
        """Batch rows with an event before this forward: physical.Lengths.fires over the batch."""
        periodic = (computed - batch.start) % batch.interval == 0
        shrinking = (computed == batch.start) & (batch.start > batch.keep)
        return np.flatnonzero(late & np.where(batch.in_place, shrinking, periodic))

    def _fire(self, batch: Batch, row: int, computed: np.ndarray, gather: Callable[[int, int], Rows]) -> Moves:
        """Select for one request and bring its table up to date; the caller moves the rows."""
        state, n = batch.states[row], int(computed[row])
        assert state.eviction is not None
        lengths, prot = state.schedule.lengths, state.schedule.prot
        slots = n if n == lengths.start else lengths.keep + lengths.interval
        positions = self.requests.positions[state.row][..., :slots]
        if n == lengths.start:
            positions[:] = torch.arange(n, dtype=torch.int32)
        else:
            positions[..., lengths.keep :] = torch.arange(n - lengths.interval, n, dtype=torch.int32)
        if lengths.in_place:
            policy, recent, order = self._shrink_policy, lengths.interval, True
        else:
            assert isinstance(state.policy, Scorer)
            policy, recent, order = state.policy, state.eviction.recent, state.policy.needs.order
        view = GatheredView(
            shape=(len(self.layers), len(self.heads), slots),
            prot=prot,
            recent=recent,
            n_select=lengths.keep - prot - recent,
            t=n,
            layers=self.layers,
            heads=self.heads,
            draw=Draw(state.eviction.seed, state.events, self.layers, self.heads),
            positions=positions.to(torch.int64),
            gather=lambda: gather(row, slots),
        )
        kept = select(policy, view)
        logical = view.need("positions").gather(2, kept)
        state.crc ^= kept_crc(state.events, self.layers, self.heads, logical)
        if not lengths.in_place:
            state.events += 1
        moves = plan(kept, slots, order)
        moves.apply(positions)
        return moves

    def _replace(self, batch: Batch, rows: np.ndarray, computed: np.ndarray) -> np.ndarray:
        """Victims of in-place rows, int64 [B'', L, H], written to the tables."""
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
