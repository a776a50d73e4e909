"""VaSE's value range over a paged cache: scoring/value_range.value_range where the values lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import PagedCache, layer_base, load_rows, meta
from policies.scoring.value_range import value_range as of_values

_TILE = 64


@kernel
def _range(
    out: tl.tensor,
    pointers: tl.tensor,
    block_table: tl.tensor,
    ends: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    n_blocks: tl.int32,
    width: tl.int32,
    ELEMENT: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    request, layer, head = row // (n_layers * n_heads), row // n_heads % n_layers, row % n_heads
    slot, end = tl.program_id(1) * TILE + tl.arange(0, TILE), tl.load(ends + request)
    values = load_rows(
        layer_base(pointers, n_layers + layer, ELEMENT, SIZE), block_table + request * n_blocks, slot, head, end,
        BLOCK, SIZE, SIZE_PADDED, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD,
    ).to(tl.float32)  # fmt: skip
    inside = (tl.arange(0, SIZE_PADDED) < SIZE)[None, :]
    high = tl.max(tl.where(inside, values, -float("inf")), 1)
    low = tl.min(tl.where(inside, values, float("inf")), 1)
    # maxima pass over NaN
    known = (tl.max((values != values).to(tl.int32), 1) == 0) & (slot < end)
    tl.store(out + row * width + slot, tl.where(known, high - low, float("nan")), mask=slot < width)


def value_range(cache: PagedCache, block_table: torch.Tensor, ends: torch.Tensor, width: int) -> torch.Tensor:
    """Largest minus smallest element of every cached value, fp32 [R, L, H, width]; NaN from slot `ends` on.

    block_table  int32 [R, blocks]; ends int32 [R], at most width: slots looked at
    """
    out = torch.empty((len(ends), cache.layers, cache.heads, width), dtype=torch.float32, device=ends.device)
    launch(
        _range, (out[..., 0].numel(), triton.cdiv(width, _TILE)),
        out, cache.pointers, block_table, ends, cache.layers, cache.heads, block_table.shape[1], width,
        ELEMENT=cache.element, TILE=_TILE, **cache.geometry(),
    )  # fmt: skip
    return out


def value_range_reference(cache: PagedCache, block_table: torch.Tensor, ends: torch.Tensor, width: int) -> torch.Tensor:
    """The twin of value_range."""
    out = torch.full((len(ends), cache.layers, cache.heads, width), float("nan"), device=ends.device)
    for request, end in enumerate(ends.tolist()):
        out[request, ..., :end] = of_values(cache.gather("values", block_table[request], end))
    return out


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    value_range(PagedCache.at_real_size(), meta(torch.int32, 32, 320), meta(torch.int32, 32), 2112)
