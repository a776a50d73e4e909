"""A paged KV cache as kernels see it: one pointer a layer, any strides; and the events of many requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

_TRITON = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
_BITS = {2: tl.int16, 4: tl.int32}


@dataclass(frozen=True)
class PagedCache:
    """Keys and values of every layer; made once, when the engine has allocated its cache.

    keys, values   one [blocks, block, H, D] a layer, D contiguous; all layers alike in shape, strides and dtype
    pointers       int64 [2, L]: addresses of keys and of values, on the cache's device
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    pointers: torch.Tensor

    @classmethod
    def of(cls, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> PagedCache:
        """Raises ValueError when the layers' caches are not alike or a row is not contiguous."""
        first = keys[0]
        for name, tensors in (("keys", keys), ("values", values)):
            for layer, tensor in enumerate(tensors):
                facts = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
                if facts != (first.shape, first.stride(), first.dtype, first.device):
                    raise ValueError(
                        f"{name} of layer {layer} are {facts}; those of layer 0 differ: all must be alike."
                    )
        if first.ndim != 4 or first.stride(3) != 1 or first.dtype not in _TRITON:
            raise ValueError(
                f"a layer's cache is {first.dtype} {list(first.shape)} with strides {first.stride()}; it must be "
                "[blocks, block, heads, size] in bf16, fp16 or fp32 with contiguous rows."
            )
        addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in (keys, values)]
        return cls(tuple(keys), tuple(values), torch.tensor(addresses, device=first.device))

    @classmethod
    def joined(cls, layers: Sequence[torch.Tensor]) -> PagedCache:
        """From vLLM's caches, one [blocks, H, block, 2 D] a layer in any memory order: a key, then its value."""
        pairs = [layer.transpose(1, 2).chunk(2, dim=3) for layer in layers]
        return cls.of([key for key, _ in pairs], [value for _, value in pairs])

    @classmethod
    def at_real_size(cls, layers: int = 36) -> PagedCache:
        """Without memory: 8 KV heads of 128, bf16, blocks of 16, slots before heads, as FLASH_ATTN lays them out."""
        return cls.joined([meta(torch.bfloat16, 1024, 16, 8, 256).transpose(1, 2)] * layers)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.keys)

    @property
    def heads(self) -> int:
        """Number of KV heads."""
        return self.keys[0].shape[2]

    @property
    def size(self) -> int:
        """Elements of a row, D."""
        return self.keys[0].shape[3]

    def geometry(self) -> dict[str, Any]:
        """Compile-time arguments that every kernel over the cache takes."""
        _, block, _, size = self.keys[0].shape
        stride_block, stride_slot, stride_head, _ = self.keys[0].stride()
        return {
            # a matrix product has at least 16 columns
            "BLOCK": block, "SIZE": size, "SIZE_PADDED": max(16, triton.next_power_of_2(size)),
            "STRIDE_BLOCK": stride_block, "STRIDE_SLOT": stride_slot, "STRIDE_HEAD": stride_head,
        }  # fmt: skip

    @property
    def element(self) -> Any:
        """Triton type of an element."""
        return _TRITON[self.keys[0].dtype]

    @property
    def bits(self) -> Any:
        """Integer type of an element's size: moved rows keep every bit, NaNs too."""
        return _BITS[self.keys[0].element_size()]

    def gather(self, which: str, block_table: torch.Tensor, slots: int) -> torch.Tensor:
        """`keys` or `values` of the first slots of the request with this block table [blocks]: [L, H, slots, D]."""
        slot = torch.arange(slots, device=block_table.device)
        block = block_table[slot // self.keys[0].shape[1]].long()
        rows = [tensor[block, slot % tensor.shape[1]] for tensor in getattr(self, which)]
        return torch.stack(rows).transpose(1, 2)


@dataclass(frozen=True)
class Events:
    """One event of each of R requests; int32 tensors on the cache's device.

    block_table  [R, blocks]: physical block of each logical block
    rows         [R]: row of each request in the position table
    slots        [R]: cached slots per head before the event
    prot, recent [R]: first and last slots that are never candidates
    keep         [R]: slots after the event, K'; at least prot + recent
    max_slots, max_keep, max_evicted   bounds of slots, keep and slots - keep: Python numbers, nothing is read back
    """

    block_table: torch.Tensor
    rows: torch.Tensor
    slots: torch.Tensor
    prot: torch.Tensor
    recent: torch.Tensor
    keep: torch.Tensor
    max_slots: int
    max_keep: int
    max_evicted: int

    @classmethod
    def at_real_size(cls, keep: int) -> Events:
        """Without memory: 32 requests that each hold `keep` + 64 slots."""
        number = meta(torch.int32, 32)
        return cls(meta(torch.int32, 32, 320), number, number, number, number, number, keep + 64, keep, 64)


def meta(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor without memory, for launches that are compiled and not run."""
    return torch.empty(shape, dtype=dtype, device="meta")


@triton.jit
def row_offsets(
    table: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    mask: tl.tensor,
    BLOCK: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
) -> tl.tensor:
    """Element offsets, int64, of a head's slots in a layer's cache; `table` points to the request's first block."""
    block = tl.load(table + slot // BLOCK, mask=mask, other=0).to(tl.int64)
    return block * STRIDE_BLOCK + slot % BLOCK * STRIDE_SLOT + head * STRIDE_HEAD


@triton.jit
def load_rows(
    base: tl.tensor,
    table: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    end: tl.tensor,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
) -> tl.tensor:
    """Rows [slots, SIZE_PADDED] of a head, 0 for slots from `end` on and for padded elements."""
    offset = row_offsets(table, slot, head, slot < end, BLOCK, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
    element = tl.arange(0, SIZE_PADDED)
    mask = (slot < end)[:, None] & (element < SIZE)[None, :]
    return tl.load(base + offset[:, None] + element[None, :], mask=mask, other=0.0)


@triton.jit
def finite_rows(rows: tl.tensor) -> tl.tensor:
    """Mask of the rows whose elements are all finite."""
    return tl.max((tl.abs(rows.to(tl.float32)) < float("inf")).to(tl.int32) ^ 1, 1) == 0


@triton.jit
def layer_base(pointers: tl.tensor, index: tl.tensor, ELEMENT: tl.constexpr, SIZE: tl.constexpr) -> tl.tensor:
    """A layer's cache from the table of addresses."""
    base = tl.load(pointers + index).to(tl.pointer_type(ELEMENT))
    # values lie one row of SIZE elements, of two bytes or more, behind the start of torch's memory
    if SIZE % 8 == 0:
        base = tl.multiple_of(base, 16)
    return base
