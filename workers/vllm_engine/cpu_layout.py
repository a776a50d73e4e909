"""Where vLLM's CPU attention keeps element (slot, d) of a head inside a block: measured, not assumed.

The instruction set decides ("vec" transposes keys in groups of 32 slots, AMX packs pairs), and it changes between
releases. So the cache writer itself is asked once per geometry: write known numbers, see where they land.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from vllm import _custom_ops as ops

# Digits of the written numbers: exact in bf16, whose integers end at 256.
_BASE = 128


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets inside one head's part of a block, in elements; keys and values [block_size, head_size] int64."""

    keys: torch.Tensor
    values: torch.Tensor


@cache
def measure(isa: str, dtype: torch.dtype, block_size: int, head_size: int) -> Layout:
    """Find the layout by writing. Raises RuntimeError when the writer does not permute (a format with scales, say)."""
    total = block_size * head_size
    number = torch.arange(total).view(block_size, 1, head_size)
    found = [torch.zeros(total, dtype=torch.int64) for _ in range(2)]
    for digit in range(3):
        rows = (number // _BASE**digit % _BASE).to(dtype)
        # Block 1, as block 0 is vLLM's null block.
        cache_ = torch.zeros(2, 1, 2 * block_size, head_size, dtype=dtype)
        keys, values = cache_.chunk(2, dim=2)
        slots = torch.arange(block_size, 2 * block_size, dtype=torch.int64)
        ops.cpu_attn_reshape_and_cache(rows, rows, keys, values, slots, isa)
        for part, cached in zip(found, (keys, values), strict=True):
            part += cached[1].reshape(-1).to(torch.int64) * _BASE**digit
    return Layout(*(_invert(part, total).view(block_size, head_size) for part in found))


def _invert(written: torch.Tensor, total: int) -> torch.Tensor:
    offsets = torch.full((total,), -1, dtype=torch.int64)
    if bool((written < 0).any()) or bool((written >= total).any()):
        raise RuntimeError("vLLM's CPU cache holds values that were never written; its layout cannot be measured.")
    offsets[written] = torch.arange(total)
    if bool((offsets < 0).any()):
        raise RuntimeError("vLLM's CPU cache does not hold every written value; its layout cannot be measured.")
    return offsets


class RowMover:
    """Moves K and V rows of single heads inside the paged caches of all layers.

    caches  per layer [blocks, kv_heads, block_size, 2 * head_size], contiguous: keys fill the first half of a head's
            part of a block, values the second
    """

    def __init__(self, caches: list[torch.Tensor], isa: str) -> None:
        _, self._heads, self._block, width = caches[0].shape
        self._size = width // 2
        layout = measure(isa, caches[0].dtype, self._block, self._size)
        self._offsets = torch.cat([layout.keys, layout.values + self._block * self._size], dim=1)
        self._caches = [c.view(-1) for c in caches]

    def move(self, layer: int, blocks: torch.Tensor, heads: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
        """Copy rows src -> dst of one layer; reads complete before writes begin, dst are distinct.

        blocks  [2, N] int64 block ids of src and dst;  heads [N];  src, dst [N] slots inside their blocks
        """
        flat = self._caches[layer]
        span = 2 * self._block * self._size
        base = (blocks * self._heads + heads) * span
        flat[base[1, :, None] + self._offsets[dst]] = flat[base[0, :, None] + self._offsets[src]]

    def read(self, layer: int, blocks: torch.Tensor, heads: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Rows [N, 2 * head_size], keys first; blocks, heads, slots [N]."""
        base = (blocks * self._heads + heads) * (2 * self._block * self._size)
        return self._caches[layer][base[:, None] + self._offsets[slots]]
