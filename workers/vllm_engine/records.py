"""What scored policies are given besides the cached rows: recent queries, attention mass and per-slot state.

Tensors exist only for what an engine's needs ask, and are written only for requests whose policy asks: random and
recent policies record nothing. Pages of the tables are touched, so resident, only once a request uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from policies.base import Needs
from policies.compaction import Moves

CPU = torch.device("cpu")

_QUERIES_AT_ONCE = 128
"""Prompt queries whose probabilities exist at one time."""


@dataclass(frozen=True, slots=True)
class RecordShape:
    """Sizes of this worker's part of the model; heads are KV heads."""

    layers: int
    heads: int
    query_heads: int
    head_size: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the requests of a batch record, [B] each.

    records, prompt          int64: record, -1 for none; prompt tokens
    queries, steps, prompts  bool: recent queries, attention mass of decode steps, and of the prompt
    """

    records: np.ndarray
    prompt: np.ndarray
    queries: np.ndarray
    steps: np.ndarray
    prompts: np.ndarray


@dataclass(frozen=True, slots=True)
class Recording:
    """What the forward of one batch records; int64 throughout.

    tokens, ring    [T]: tokens of the batch whose queries are kept, and their rows in each layer's ring
    rows, records   [R]: batch rows whose decode step adds attention mass, and their records; newest [R] their tokens
                    in the batch, cached [R] their slots
    prefills        (record, first token in the batch, tokens) of prompts whose queries add attention mass
    """

    tokens: torch.Tensor
    ring: torch.Tensor
    rows: torch.Tensor
    records: torch.Tensor
    newest: torch.Tensor
    cached: torch.Tensor
    prefills: tuple[tuple[int, int, int], ...]


class Records:
    """The tables; a request with needs owns one record, index R of each.

    queries     [L, R, w, H_q, D] in the model's dtype, ring over logical positions
    mass        fp32 [L, R, H, capacity] per cached slot
    slot_state  fp32 [L, R, H, capacity, n] per cached slot, n = needs.slot_state
    """

    def __init__(
        self,
        needs: Needs,
        shape: RecordShape,
        max_requests: int,
        capacity: int,
        device: torch.device = CPU,
    ) -> None:
        self.shape, self.window = shape, needs.recent_queries
        per_slot = (shape.layers, max_requests, shape.heads, capacity)
        self.queries = torch.zeros(
            (shape.layers, max_requests, self.window, shape.query_heads, shape.head_size),
            dtype=shape.dtype,
            device=device,
        )
        self.mass = torch.zeros(per_slot, device=device) if needs.attention else None
        self.slot_state = torch.zeros((*per_slot, needs.slot_state), device=device) if needs.slot_state else None
        self._free = list(range(max_requests - 1, -1, -1))

    def take(self) -> int:
        """A record with nothing in it."""
        record = self._free.pop()
        for table in self._per_slot():
            table[:, record] = 0.0
        return record

    def free(self, record: int) -> None:
        """Give a record back."""
        self._free.append(record)

    def recent(self, record: int, t: int, count: int) -> torch.Tensor:
        """The newest min(count, t) queries of a request with t tokens, oldest first: [L, H_q, w, D]."""
        newest = torch.arange(max(t - count, 0), t, device=self.queries.device) % self.window
        return self.queries[:, record].index_select(1, newest).transpose(1, 2)

    def compact(self, record: int, moves: Moves, slots: int, keep: int) -> None:
        """Follow an event from `slots` to `keep` cached tokens; slots behind start anew."""
        for table in self._per_slot():
            moves.apply(table[:, record, :, :slots])
            table[:, record, :, keep:] = 0.0

    def plan(
        self, wanted: Wanted, starts: np.ndarray, query_lens: np.ndarray, computed: np.ndarray, cached: np.ndarray
    ) -> Recording:
        """What a batch's forward records; int64 [B] each as in EvictionCore.step, starts = first token of each row."""
        records, decodes = wanted.records, query_lens == 1
        rows = np.flatnonzero(wanted.queries & decodes)
        tokens, ring = [starts[rows]], [records[rows] * self.window + computed[rows] % self.window]
        for row in np.flatnonzero(wanted.queries & ~decodes):
            end = computed[row] + query_lens[row]
            position = np.arange(max(end - self.window, computed[row]), end)
            tokens.append(starts[row] + position - computed[row])
            ring.append(records[row] * self.window + position % self.window)
        weighed = np.flatnonzero(wanted.steps & (computed >= wanted.prompt))
        prefills = np.flatnonzero(wanted.prompts & (computed < wanted.prompt))
        assert not computed[prefills].any(), "prompts whose attention counts are computed as a whole"
        return Recording(
            torch.from_numpy(np.concatenate(tokens)),
            torch.from_numpy(np.concatenate(ring)),
            torch.from_numpy(weighed),
            torch.from_numpy(records[weighed]),
            torch.from_numpy(starts[weighed]),
            torch.from_numpy(cached[weighed]),
            tuple(zip(*(values[prefills].tolist() for values in (records, starts, query_lens)), strict=True)),
        )

    def keep_queries(self, plan: Recording, layer: int, query: torch.Tensor) -> None:
        """Store a layer's queries [tokens, H_q, D]."""
        if len(plan.tokens):
            self.queries[layer].flatten(0, 1).index_copy_(0, plan.ring, query.index_select(0, plan.tokens))

    def add_decode_mass(
        self,
        plan: Recording,
        layer: int,
        query: torch.Tensor,
        scale: float,
        keys: Callable[[int], torch.Tensor],
    ) -> None:
        """Add a decode step's probabilities; keys(slots) -> [R, H, slots, D] of the plan's rows. query [R, H_q, D]."""
        assert self.mass is not None
        slots = int(plan.cached.max())
        grouped = query.float().view(len(plan.rows), self.shape.heads, -1, self.shape.head_size)
        logits = grouped @ keys(slots).float().transpose(2, 3) * scale
        logits.masked_fill_(torch.arange(slots) >= plan.cached[:, None, None, None], float("-inf"))
        self.mass[layer, :, :, :slots].index_add_(0, plan.records, logits.softmax(-1).sum(2))

    def add_prompt_mass(
        self, plan: Recording, layer: int, query: torch.Tensor, key: torch.Tensor, scale: float
    ) -> None:
        """Add the probabilities of whole prompts: query [tokens, H_q, D], key [tokens, H, D] of the batch."""
        for record, first, count in plan.prefills:
            assert self.mass is not None
            keys = key[first : first + count].float().permute(1, 2, 0)[:, None]
            queries = query[first : first + count].float().unflatten(1, (self.shape.heads, -1)).permute(1, 2, 0, 3)
            for begin in range(0, count, _QUERIES_AT_ONCE):
                logits = queries[:, :, begin : begin + _QUERIES_AT_ONCE] @ keys * scale
                span = torch.arange(begin, begin + logits.shape[2], device=logits.device)
                later = torch.arange(count, device=logits.device) > span[:, None]
                logits.masked_fill_(later, float("-inf"))
                self.mass[layer, record, :, :count] += logits.softmax(-1).sum((1, 2))

    def _per_slot(self) -> list[torch.Tensor]:
        return [table for table in (self.mass, self.slot_state) if table is not None]
