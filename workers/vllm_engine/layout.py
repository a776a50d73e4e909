"""Where the elements of a cached row lie in vLLM's CPU cache, read from behaviour and used for moves and gathers.

The CPU kernels pack K (and with AMX also V) differently per instruction set, and the packing is nowhere documented.
So the packing is measured: known rows are written through vLLM's own writer and found again. Every packing met so far
is separable, offset(slot, element) = slot part + element part, which is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from vllm import _custom_ops as ops

Rows = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""

_DIGIT = 128  # bf16 and fp16 hold the integers below 256 exactly


@dataclass(frozen=True, slots=True)
class RowPacking:
    """Element offsets inside one (block, KV head) chunk of 2 * block * D elements, int64.

    key_slot, value_slot        [block] part of the slot
    key_element, value_element  [D] part of the element
    """

    key_slot: torch.Tensor
    key_element: torch.Tensor
    value_slot: torch.Tensor
    value_element: torch.Tensor


def fold_heads(kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value cache [blocks * H, 1, block, D] of one layer [blocks, H, block, 2 D]: a slot per head and block."""
    blocks, heads, block, row = kv_cache.shape
    folded = kv_cache.view(blocks * heads, 1, 2 * block, row // 2)
    key, value = folded.chunk(2, dim=2)
    return key, value


def write_folded(
    key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, folded_slots: torch.Tensor, isa: str
) -> None:
    """Write rows key, value [N, D] into kv_cache [blocks, H, block, 2 D] with vLLM's writer.

    folded_slots   [N] int64 = (block * H + head) * block_size + offset
    """
    key_cache, value_cache = fold_heads(kv_cache)
    ops.cpu_attn_reshape_and_cache(
        key[:, None], value[:, None], key_cache, value_cache, folded_slots, isa,
        k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto",
    )  # fmt: skip


def probe(isa: str, dtype: torch.dtype, block_size: int, head_size: int) -> RowPacking:
    """Measure the packing of one instruction set. Raises RuntimeError when it is not separable."""
    cache = torch.zeros(2, 1, block_size, 2 * head_size, dtype=dtype)
    key_cache, value_cache = fold_heads(cache)
    ids = torch.arange(block_size * head_size).view(block_size, 1, head_size)
    seen = torch.zeros(2 * block_size * head_size, dtype=torch.int64)
    for scale in (1, _DIGIT, _DIGIT**2):
        rows = (ids // scale % _DIGIT).to(dtype)
        slots = torch.arange(block_size, 2 * block_size)
        ops.cpu_attn_reshape_and_cache(
            rows, rows, key_cache, value_cache, slots, isa, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"
        )
        seen += cache[1].flatten().to(torch.int64) * scale
    parts: list[torch.Tensor] = []
    for half in range(2):
        size = block_size * head_size
        offsets = torch.empty(size, dtype=torch.int64)
        offsets[seen[half * size : (half + 1) * size]] = torch.arange(half * size, (half + 1) * size)
        grid = offsets.view(block_size, head_size)
        slot, element = grid[:, 0], grid[0] - grid[0, 0]
        if not torch.equal(grid, slot[:, None] + element):
            raise RuntimeError(f"the {isa} cache packing of {dtype}, head size {head_size} is not separable")
        parts += [slot.clone(), element.clone()]
    return RowPacking(*parts)


class CacheRows:
    """Rows of every layer's cache, addressed as (layer, KV head, logical block of a request, slot).

    Rows are read by element, as the packing says, and written by vLLM's own writer, layers and heads folded into the
    blocks.
    """

    def __init__(self, layers: Sequence[torch.Tensor], isa: str) -> None:
        """`layers`: kv_cache [blocks, H, block, 2 D] of each, in order. Raises RuntimeError on separate storages."""
        first = layers[0]
        blocks, heads, self.block_size, row = first.shape
        storage = first.untyped_storage()
        together = all(t.untyped_storage().data_ptr() == storage.data_ptr() and t.is_contiguous() for t in layers)
        starts = [t.storage_offset() for t in layers]
        if not together or starts != [first.storage_offset() + i * first.numel() for i in range(len(layers))]:
            raise RuntimeError("vLLM did not allocate the layers' caches one behind the other in one storage")
        flat = torch.empty(0, dtype=first.dtype).set_(storage)
        self._flat = flat[starts[0] : starts[0] + len(layers) * first.numel()]
        self._whole = self._flat.view(len(layers) * blocks, heads, self.block_size, row)
        self._isa, self._packing = isa, probe(isa, first.dtype, self.block_size, row // 2)
        packing = self._packing
        self._halves = ((packing.key_slot, packing.key_element), (packing.value_slot, packing.value_element))
        # a chunk holds the slots of one block and head; block b of layer l and head h is chunk l * B * H + b * H + h
        self._heads, self._chunk = heads, self.block_size * row
        self._first_chunk = (torch.arange(len(layers)) * blocks * heads)[:, None] + torch.arange(heads)

    def move(self, block_ids: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy rows of several requests at once; every source is read before any target is written.

        block_ids       int64 [R, blocks] physical block of each logical block
        source, target  int64 [R, L, H, M] slots
        """
        keys, values = self._read(block_ids, source)
        chunk, offset = self._locate(block_ids, target)
        write_folded(keys, values, self._whole, (chunk * self.block_size + offset).flatten(), self._isa)

    def gather(self, block_ids: torch.Tensor, slots: int) -> Rows:
        """Keys and values [L, H, slots, D] of one request's slots 0 .. slots - 1, in the cache's dtype."""
        blocks = -(-slots // self.block_size)
        chunks = self._chunks(block_ids[None, None, :blocks] * self._heads + self._first_chunk[..., None])
        keys, values = (self._unpack(chunks, *packing)[:, :, :slots] for packing in self._halves)
        return keys, values

    def keys(self, layer: int, block_ids: torch.Tensor, slots: int) -> torch.Tensor:
        """Keys [R, H, slots, D] of one layer and the first slots of several requests; block_ids [R, blocks]."""
        blocks = -(-slots // self.block_size)
        chunks = self._chunks(block_ids[:, None, :blocks] * self._heads + self._first_chunk[layer, :, None])
        return self._unpack(chunks, *self._halves[0])[:, :, :slots]

    def _chunks(self, index: torch.Tensor) -> torch.Tensor:
        """Whole chunks [.., 2 * block * D] by index."""
        return self._flat.view(-1, self._chunk).index_select(0, index.flatten()).view(*index.shape, self._chunk)

    def _unpack(self, chunks: torch.Tensor, slot: torch.Tensor, element: torch.Tensor) -> torch.Tensor:
        """Rows [.., blocks * block, D] of chunks [.., blocks, 2 * block * D]."""
        order = (slot[:, None] + element).flatten()
        return chunks.index_select(-1, order).view(*chunks.shape[:-2], -1, len(element))

    def _read(self, block_ids: torch.Tensor, slots: torch.Tensor) -> Rows:
        """Keys and values [rows, D] of slots [R, L, H, M]."""
        chunk, offset = (index.flatten() for index in self._locate(block_ids, slots))
        base = chunk * self._chunk
        keys = (base + self._packing.key_slot[offset])[:, None] + self._packing.key_element
        values = (base + self._packing.value_slot[offset])[:, None] + self._packing.value_element
        size = keys.shape[1]
        return tuple(self._flat.index_select(0, index.view(-1)).view(-1, size) for index in (keys, values))  # type: ignore[return-value]

    def _locate(self, block_ids: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Chunk and slot within it, [R, L, H, M]."""
        block = block_ids.gather(1, (slots // self.block_size).flatten(1)).view_as(slots)
        return block * self._heads + self._first_chunk[..., None], slots % self.block_size
