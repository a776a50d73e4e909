"""Between vLLM's V2 runner and the core: one step's facts in tensors that stay where they are, as CUDA graphs ask.

Replayed kernels read these tensors at the addresses they had at capture, so dummy and capture batches fill them too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from policies.kernels.attention_mass import add_decode_mass
from policies.kernels.inplace import Replacing, write
from policies.kernels.lengths import Places, rewrite
from policies.kernels.paged import PagedCache
from policies.kernels.recorder import record
from workers.vllm_engine.cuda_core import DeviceCore, PagedSource, rows_of, stage
from workers.vllm_engine.events import Step
from workers.vllm_engine.records import Recording
from workers.vllm_engine.state import Batch

_NEVER = 2**31 - 1
_COLUMNS = ("cached", "tokens", "slots", "n", "keep", "prot", "start", "rows", "records")


class CudaEviction:
    """Ties a DeviceCore to one V2 runner.

    block_table  int32 [max_reqs, blocks], vLLM's persistent table of the batch
    max_tokens   tokens of the largest batch
    """

    def __init__(self, core: DeviceCore, cache: PagedCache, block_table: torch.Tensor, max_tokens: int) -> None:
        core.cache = cache
        self.core, self._cache, self._table = core, cache, block_table
        self._block = cache.keys[0].shape[1]
        rows, device = len(block_table), block_table.device
        self.lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._numbers = torch.zeros((len(_COLUMNS), rows), dtype=torch.int32, device=device)
        self._seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self._token_rows = torch.full((max_tokens,), -1, dtype=torch.int32, device=device)
        self._ring_rows = self._token_rows.clone()
        column = dict(zip(_COLUMNS, self._numbers, strict=True))
        self._places = Places(column["cached"], column["tokens"], column["slots"])
        self._replacing = Replacing(
            self._token_rows, block_table, column["rows"], self._seeds, column["n"], column["keep"], column["prot"],
            column["start"],
        )  # fmt: skip
        self._records = column["records"]
        tables = core.requests.records
        rings = 0 if tables is None else tables.queries.shape[1]
        self._newest = torch.zeros(rings, dtype=torch.int64, device=device)
        self._positions = torch.zeros(0, dtype=torch.int64, device=device)
        self._step: Step | None = None
        self._batch: Batch | None = None
        self._of: Any = None
        self._prompts: Recording | None = None

    def begin(self, batch: Any, block_table: torch.Tensor, token_ids: torch.Tensor) -> None:
        """Events of a real batch, before its forward: an InputBatch of vLLM and its block table.

        token_ids   int32 [requests, max_model_len] of vLLM's runner, by its own request index
        """
        computed = batch.num_computed_tokens_np.astype(np.int64)
        query_lens = batch.num_scheduled_tokens.astype(np.int64)
        index = batch.idx_mapping_np
        source = PagedSource(rows_of(self._cache, block_table), _ids(token_ids, index), block_table)
        self._step = self.core.step(batch.req_ids, computed, query_lens, source)
        self._batch, self._of = self.core.requests.batch(batch.req_ids), batch
        starts = batch.query_start_loc_np[: batch.num_reqs].astype(np.int64)
        self._stage(self._batch, self._step, computed, query_lens, starts)
        self._stage_tokens(np.where(query_lens == 1, np.arange(len(starts)), -1), query_lens, self._token_rows, batch)
        if len(self._newest):
            self._stage_records(self._batch, batch, computed, query_lens, starts)

    def place(self, batch: Any, slot_mapping: torch.Tensor) -> Any:
        """The batch with physical lengths, in our own tensors; decoded tokens' slots are changed in slot_mapping [T].

        Batches that `begin` has not seen are vLLM's dummies: their lengths stay, nothing replaces or is recorded.
        """
        self._positions, real = batch.positions, batch is self._of
        if not real:
            self._idle(batch)
            return replace(batch, seq_lens=self.lengths[: len(batch.seq_lens)])
        assert self._step is not None
        rewrite(slot_mapping, self.lengths, self._table, self._places, self._block)
        known = np.zeros(len(batch.seq_lens), np.int32)
        known[: batch.num_reqs] = self._step.cached
        return replace(batch, seq_lens=self.lengths[: len(known)], seq_lens_cpu_upper_bound=torch.from_numpy(known))

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Write the new rows of a layer, each head's to its victim where a request replaces in place."""
        count = min(len(key), len(slot_mapping))
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        write(
            (key[:count], value[:count]), (keys, values), slot_mapping[:count], self._replacing, self.core.ledger,
            layer, self.core.requests.settings.interval,
        )  # fmt: skip

    def record(self, layer: int, query: torch.Tensor, key: torch.Tensor, scale: float, slots: torch.Tensor) -> None:
        """Keep what a layer's forward shows to later events; its keys are in the cache. query [tokens, H_q, D]."""
        records = self.core.requests.records
        if records is None:
            return
        count = min(len(query), len(slots), len(self._positions))
        query = query[:count]
        if records.window:
            record(query, records.queries[layer], slots, self._ring_rows, self._positions, self._newest)
        if records.mass is not None:
            add_decode_mass(
                records.mass[layer], query, self._cache.keys[layer], self._token_rows[:count], self._table,
                self._records, self._places.cached, scale,
            )  # fmt: skip
            if self._prompts is not None:
                records.add_prompt_mass(self._prompts, layer, query, key, scale)

    def _stage(
        self, batch: Batch, step: Step, computed: np.ndarray, query_lens: np.ndarray, starts: np.ndarray
    ) -> None:
        count = len(computed)
        decodes = query_lens == 1
        moved = decodes & (computed >= batch.start) & ~batch.in_place
        numbers = np.zeros((len(_COLUMNS), len(self._table)), np.int64)
        numbers[2, count:] = numbers[8, :] = -1
        wanted = batch.wanted
        weighs = np.zeros(count, bool) if wanted is None else wanted.steps & decodes & (computed >= wanted.prompt)
        columns = (
            step.cached, starts, np.where(moved, step.slots, -1), computed, batch.keep, batch.prot,
            np.where(batch.in_place, batch.start, _NEVER), batch.rows,
            np.where(weighs, -1 if wanted is None else wanted.records, -1),
        )  # fmt: skip
        numbers[:, :count] = np.minimum(columns, _NEVER)
        stage(numbers.astype(np.int32), self._numbers)
        seeds = np.zeros(len(self._seeds), np.int64)
        seeds[:count] = batch.seeds.view(np.int64)
        stage(seeds, self._seeds)

    def _stage_tokens(self, rows: np.ndarray, query_lens: np.ndarray, out: torch.Tensor, batch: Any) -> None:
        """Per token of the batch what its row has in `rows`, -1 for a graph's padding."""
        found = np.full(batch.num_tokens_after_padding, -1, np.int32)
        found[: batch.num_tokens] = np.repeat(rows, query_lens)
        stage(found, out[: len(found)])

    def _stage_records(
        self, batch: Batch, of: Any, computed: np.ndarray, query_lens: np.ndarray, starts: np.ndarray
    ) -> None:
        wanted, self._prompts = batch.wanted, None
        rings = np.full(len(computed), -1, np.int64)
        newest = np.zeros(len(self._newest), np.int64)
        if wanted is not None:
            rings = np.where(wanted.queries, wanted.records, -1)
            newest[rings[rings >= 0]] = (computed + query_lens - 1)[rings >= 0]
            records = self.core.requests.records
            assert records is not None
            if (wanted.prompts & (computed < wanted.prompt)).any():
                self._prompts = records.plan(wanted, starts, query_lens, computed, computed + query_lens)
        self._stage_tokens(rings, query_lens, self._ring_rows, of)
        stage(newest, self._newest)

    def _idle(self, batch: Any) -> None:
        self._step = self._of = self._prompts = None
        count = len(batch.seq_lens)
        self.lengths[:count].copy_(batch.seq_lens)
        self.lengths[count:].zero_()
        self._token_rows.fill_(-1)
        self._ring_rows.fill_(-1)


def _ids(token_ids: torch.Tensor, index: np.ndarray) -> Callable[[int, int], torch.Tensor]:
    return lambda row, count: token_ids[int(index[row]), :count].long()
