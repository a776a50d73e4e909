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


def write_rows(
    layer: torch.nn.Module, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, folded_slots: torch.Tensor
) -> None:
    """Write key, value [T, H, D] of a layer; folded_slots [T * H] int64 = (block * H + head) * block_size + offset."""
    key_cache, value_cache = fold_heads(kv_cache)
    tokens, heads, size = key.shape
    ops.cpu_attn_reshape_and_cache(
        key.reshape(tokens * heads, 1, size),
        value.reshape(tokens * heads, 1, size),
        key_cache,
        value_cache,
        folded_slots,
        layer.isa,
        k_scale=layer._k_scale_float,
        v_scale=layer._v_scale_float,
        kv_cache_dtype="auto",
    )


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
    """Rows of every layer's cache, addressed as (layer, KV head, logical block of a request, slot)."""

    def __init__(self, layers: Sequence[torch.Tensor], packing: RowPacking) -> None:
        """`layers`: kv_cache tensors [blocks, H, block, 2 D] in order. Raises RuntimeError on separate storages."""
        storage = layers[0].untyped_storage()
        if any(t.untyped_storage().data_ptr() != storage.data_ptr() for t in layers):
            raise RuntimeError("vLLM allocated the layers' caches in separate storages; one is expected")
        if any(t.stride() != layers[0].stride() for t in layers):
            raise RuntimeError("the layers' caches differ in strides")
        self._flat = torch.empty(0, dtype=layers[0].dtype).set_(storage)
        block_stride, head_stride = layers[0].stride()[:2]
        self.block_size = layers[0].shape[2]
        heads = torch.arange(layers[0].shape[1]) * head_stride
        self._base = torch.tensor([t.storage_offset() for t in layers])[:, None] + heads
        self._block_stride = block_stride
        self._packing = packing

    def move(self, block_ids: torch.Tensor, source: torch.Tensor, target: torch.Tensor, used: torch.Tensor) -> None:
        """Copy rows of several requests at once; every source is read before any target is written.

        block_ids       int64 [R, blocks] physical block of each logical block
        source, target  int64 [R, L, H, M] slots; entries where `used` is False are ignored
        """
        read, write = (self._elements(block_ids, slots, used) for slots in (source, target))
        self._flat[write] = self._flat[read]

    def gather(self, block_ids: torch.Tensor, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [L, H, slots, D] of one request's slots 0 .. slots - 1, in the cache's dtype."""
        index = torch.arange(slots).expand(1, *self._base.shape, slots)
        elements = self._elements(block_ids[None], index, torch.ones_like(index, dtype=torch.bool))
        rows = self._flat[elements].view(2, *self._base.shape, slots, -1)
        return rows[0], rows[1]

    def _elements(self, block_ids: torch.Tensor, slots: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
        """Flat element indices of the used rows: [2, rows, D] for keys, then values."""
        block, offset = slots // self.block_size, slots % self.block_size
        block = torch.where(used, block, 0)
        physical = block_ids.gather(1, block.flatten(1)).view_as(slots)
        chunk = (physical * self._block_stride + self._base[None, :, :, None])[used]
        offset = offset[used]
        keys = (chunk + self._packing.key_slot[offset])[:, None] + self._packing.key_element
        values = (chunk + self._packing.value_slot[offset])[:, None] + self._packing.value_element
        return torch.stack((keys, values))
