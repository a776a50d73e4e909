"""Where the elements of a cached row lie in vLLM's CPU cache, read from behaviour and used for moves and gathers.

The CPU kernels pack K (and with AMX also V) differently per instruction set, and the packing is nowhere documented.
So the packing is measured: known rows are written through vLLM's own writer and found again. Every packing met so far
is separable, offset(slot, element) = slot part + element part, and each part a walk over strides; both are checked.
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


@dataclass(frozen=True, slots=True)
class Walk:
    """Rows of one half of a chunk (keys or values) as strides: a copy through them is many times faster than an index.

    start          offset of (slot 0, element 0) inside the half
    sizes, strides of the slot's digits, then the element's, outermost first
    """

    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(slot: torch.Tensor, element: torch.Tensor, start: int) -> Walk:
        """From the two parts of a packing. Raises RuntimeError when they are no walk over strides."""
        (slot_sizes, slot_strides), (sizes, strides) = (_digits((part - part[0]).tolist()) for part in (slot, element))
        return Walk(start, slot_sizes + sizes, slot_strides + strides)

    def rows(self, halves: torch.Tensor, size: int) -> torch.Tensor:
        """Rows [.., blocks * block, size] of contiguous halves [.., blocks, block * size]."""
        lead = halves.shape[:-1]
        strided = halves.as_strided(
            (*lead, *self.sizes), (*halves.stride()[:-1], *self.strides), halves.storage_offset() + self.start
        )
        return strided.reshape(*lead[:-1], -1, size)


def _digits(offsets: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides, outermost first, whose walk in row-major order visits `offsets`, the first of them 0."""
    count = len(offsets)
    if count == 1:
        return (), ()
    run = next((i for i in range(count) if offsets[i] != i * offsets[1]), count)
    run = next(length for length in range(run, 0, -1) if count % length == 0)
    if run == 1:
        raise RuntimeError(f"the cache packing is no walk over strides: {list(offsets)}")
    starts = offsets[::run]
    if any(offsets[i] != starts[i // run] + offsets[i % run] for i in range(count)):
        raise RuntimeError(f"the cache packing is no walk over strides: {list(offsets)}")
    sizes, strides = _digits(starts)
    return (*sizes, run), (*strides, offsets[1])


class CacheRows:
    """Rows of every layer's cache, addressed as (layer, KV head, logical block of a request, slot).

    Rows are read as the packing says and written by vLLM's own writer, layers and heads folded into the blocks.
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
        packing, half = self._packing, self.block_size * row // 2
        self._key_walk = Walk.of(packing.key_slot, packing.key_element, int(packing.key_slot[0]))
        self._value_walk = Walk.of(packing.value_slot, packing.value_element, int(packing.value_slot[0]) - half)
        self._size = row // 2
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
        chunks = block_ids[None, None, : self._blocks(slots)] * self._heads + self._first_chunk[..., None]
        keys = self._key_walk.rows(self._halves(chunks, 0), self._size)
        values = self._value_walk.rows(self._halves(chunks, 1), self._size)
        return keys[:, :, :slots], values[:, :, :slots]

    def keys(self, layer: int, block_ids: torch.Tensor, slots: int) -> torch.Tensor:
        """Keys [R, H, slots, D] of one layer and the first slots of several requests; block_ids [R, blocks]."""
        chunks = block_ids[:, None, : self._blocks(slots)] * self._heads + self._first_chunk[layer, :, None]
        return self._key_walk.rows(self._halves(chunks, 0), self._size)[:, :, :slots]

    def _blocks(self, slots: int) -> int:
        return -(-slots // self.block_size)

    def _halves(self, chunks: torch.Tensor, half: int) -> torch.Tensor:
        """Key (0) or value (1) halves [.., block * D] of chunks by index."""
        halves = self._flat.view(-1, self._chunk // 2)
        return halves.index_select(0, (2 * chunks + half).flatten()).view(*chunks.shape, -1)

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
