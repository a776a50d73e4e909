"""V1 runner on the CPU: CPU_ATTN with physical lengths. Registered in place of CPU_ATTN by EvictingCPUWorker only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadata,
    CPUAttentionMetadataBuilder,
)

from policies.compaction import Moves
from workers.vllm_engine.events import EvictionCore, Rows, Source, Step
from workers.vllm_engine.layout import CacheRows, write_folded
from workers.vllm_engine.records import Recording


class EvictingCPUBackend(CPUAttentionBackend):
    """CPU_ATTN whose requests hold a bounded number of rows."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """Writes per-head slots where a step has any."""
        return EvictingImpl

    @staticmethod
    def get_builder_cls() -> type[CPUAttentionMetadataBuilder]:
        """Runs a step's events and rewrites its lengths."""
        return EvictingBuilder


class EvictingBuilder(CPUAttentionMetadataBuilder):
    """`eviction` is set by the runner once the cache exists."""

    supports_update_block_table: bool = False
    eviction: CpuEviction | None = None

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CPUAttentionMetadata:
        """As the base, over physical lengths; dummy batches pass through."""
        if self.eviction is not None and self.eviction.live:
            common_attn_metadata = self.eviction.rewrite(common_attn_metadata)
        return super().build(common_prefix_len, common_attn_metadata, fast_build)


class EvictingImpl(CPUAttentionBackendImpl):
    """`eviction` and `layer_index`, the layer's row in its arrays, are set by the runner once the cache exists."""

    eviction: CpuEviction | None = None
    layer_index: int = 0

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As the base; records for policies that need it. The keys of this step are in the cache already."""
        if self.eviction is not None and self.eviction.recording is not None:
            self.eviction.record(self.layer_index, query, key, self.scale)
        return super().forward(layer, query, key, value, *args, **kwargs)

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """One write call per layer; heads are folded into the blocks when their slots differ."""
        folded = self.eviction.folded_slots if self.eviction is not None else None
        if folded is None:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
            return
        slots = folded[self.layer_index]
        rows, size = len(slots), key.shape[-1]
        write_folded(key.reshape(-1, size)[:rows], value.reshape(-1, size)[:rows], kv_cache, slots, str(layer.isa))


class CpuEviction:
    """Ties an EvictionCore to the paged cache of one V1 runner.

    live          False in dummy runs, whose rows belong to no request
    folded_slots  int64 [L, T * H] while a step has tokens with one slot per head
    recording     what this step's forward records, None for nothing
    """

    def __init__(
        self,
        core: EvictionCore,
        cache: CacheRows,
        request_ids: Callable[[], Sequence[str]],
        token_ids: Callable[[int, int], torch.Tensor],
    ) -> None:
        self.core, self.live = core, False
        self.folded_slots: torch.Tensor | None = None
        self.recording: Recording | None = None
        self._cache, self._request_ids, self._token_ids = cache, request_ids, token_ids
        self._recorded_blocks = torch.empty(0, 0, dtype=torch.int64)

    def rewrite(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """Run the step's events; replace lengths (in our own tensor: the sampler reads vLLM's) and slots (in place)."""
        starts = common.query_start_loc_cpu.numpy()
        query_lens = np.diff(starts).astype(np.int64)
        computed = common.seq_lens.numpy() - query_lens
        table = common.block_table_tensor
        request_ids = self._request_ids()[: common.num_reqs]
        source = Source(lambda row, slots: self._gather(table, row, slots), self._token_ids)
        step = self.core.step(request_ids, computed, query_lens, source)
        for rows, plan in step.moves:
            self._move(table, rows, plan)
        mapping, blocks = common.slot_mapping.numpy(), table.numpy()
        slots = step.slots[step.decode]
        mapping[starts[step.decode]] = self._physical(blocks, step.decode, slots)
        self.folded_slots = self._fold(step, starts, blocks, mapping) if step.victims is not None else None
        self.recording = step.recording
        if step.recording is not None:
            self._recorded_blocks = table[step.recording.rows].to(torch.int64)
        seq_lens = torch.from_numpy(step.cached.astype(np.int32))
        return common.replace(seq_lens=seq_lens, max_seq_len=int(step.cached.max()))

    def record(self, layer: int, query: torch.Tensor, key: torch.Tensor, scale: float) -> None:
        """Keep what a layer's forward shows to later events; its keys are in the cache. query [tokens, H_q, D]."""
        plan, records = self.recording, self.core.requests.records
        assert plan is not None
        assert records is not None
        records.keep_queries(plan, layer, query)
        if len(plan.rows):
            blocks = self._recorded_blocks
            rows = query.index_select(0, plan.newest)
            records.add_decode_mass(plan, layer, rows, scale, lambda slots: self._cache.keys(layer, blocks, slots))
        records.add_prompt_mass(plan, layer, query, key, scale)

    def end_step(self) -> None:
        """Forget what belongs to one forward."""
        self.live, self.folded_slots, self.recording = False, None, None

    def _physical(self, blocks: np.ndarray, rows: np.ndarray, slots: np.ndarray) -> np.ndarray:
        size = self._cache.block_size
        return blocks[rows, slots // size].astype(np.int64) * size + slots % size

    def _fold(self, step: Step, starts: np.ndarray, blocks: np.ndarray, mapping: np.ndarray) -> torch.Tensor:
        """Slots of every (layer, token, head): the shared slot for all heads, victims where a row replaces in place."""
        assert step.victims is not None
        size, (layers, heads) = self._cache.block_size, step.victims.shape[1:]
        tokens = int(starts[-1])
        head = np.arange(heads)

        def fold(slots: np.ndarray) -> np.ndarray:
            return (slots // size * heads + head) * size + slots % size

        folded = np.repeat(fold(mapping[None, :tokens, None]), layers, axis=0)
        victims = self._physical(blocks, step.replacing[:, None, None], step.victims)
        folded[:, starts[step.replacing]] = fold(victims).swapaxes(0, 1)
        return torch.from_numpy(folded.reshape(layers, -1))

    def _move(self, table: torch.Tensor, rows: list[int], plan: Moves) -> None:
        # order-preserving moves begin with rows that stay: a protected prompt, whose blocks may be shared
        first = int((plan.src != plan.dst).flatten(0, 1).any(0).int().argmax())
        shape = (len(rows), -1, plan.src.shape[1], plan.src.shape[2] - first)
        source, target = (index[..., first:].reshape(shape) for index in (plan.src, plan.dst))
        self._cache.move(table[rows].to(torch.int64), source, target)

    def _gather(self, table: torch.Tensor, row: int, slots: int) -> Rows:
        return self._cache.gather(table[row].to(torch.int64), slots)


def describe(runner: Any) -> dict[str, str]:
    """Names of the classes in place, for attestation."""
    groups = [group for groups in runner.attn_groups for group in groups]
    builders = {type(group.get_metadata_builder(0)).__name__ for group in groups}
    context = runner.compilation_config.static_forward_context
    names = [name for group in groups for name in group.layer_names]
    specs = {type(group.kv_cache_spec).__name__ for group in runner.kv_cache_config.kv_cache_groups}
    return {
        "backend": ",".join(sorted({group.backend.__name__ for group in groups})),
        "builder": ",".join(sorted(builders)),
        "impl": ",".join(sorted({type(context[name].impl).__name__ for name in names})),
        "spec": ",".join(sorted(specs)),
    }
