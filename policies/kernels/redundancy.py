"""R-KV's redundancy over a paged cache in O(S·D): scoring/redundancy.mean_cosine where the keys lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import PagedCache, finite_rows, layer_base, load_rows, meta
from policies.scoring.redundancy import EPSILON, directions
from policies.scoring.redundancy import mean_cosine as of_directions

_TILE = 32


@triton.jit
def _directions(keys: tl.tensor, EPSILON: tl.constexpr) -> tl.tensor:
    """Rows of unit length, fp32; 0 where a key is not finite."""
    rows = tl.where(finite_rows(keys)[:, None], keys.to(tl.float32), 0.0)
    return rows / (tl.sqrt_rn(tl.sum(rows * rows, 1)) + EPSILON)[:, None]


@kernel
def _mean_cosine(
    out: tl.tensor,
    pointers: tl.tensor,
    block_table: tl.tensor,
    ends: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    n_blocks: tl.int32,
    width: tl.int32,
    EPSILON: tl.constexpr,
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
    end, table = tl.load(ends + request), block_table + request * n_blocks
    base = layer_base(pointers, layer, ELEMENT, SIZE)
    total = tl.zeros((SIZE_PADDED,), tl.float32)
    for start in range(0, end, TILE):
        slot = start + tl.arange(0, TILE)
        keys = load_rows(base, table, slot, head, end, BLOCK, SIZE, SIZE_PADDED, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
        total += tl.sum(_directions(keys, EPSILON), 0)
    for start in range(0, width, TILE):
        slot = start + tl.arange(0, TILE)
        keys = load_rows(base, table, slot, head, end, BLOCK, SIZE, SIZE_PADDED, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
        unit = _directions(keys, EPSILON)
        mean = (tl.sum(unit * total[None, :], 1) - tl.sum(unit * unit, 1)) / end
        tl.store(out + row * width + slot, tl.where(slot < end, mean, -float("inf")), mask=slot < width)


def mean_cosine(cache: PagedCache, block_table: torch.Tensor, ends: torch.Tensor, width: int) -> torch.Tensor:
    """Mean cosine of every cached key with the keys of its head, itself counted as 0: fp32 [R, L, H, width].

    -inf from slot `ends` on, so that a softmax over the width is R-KV's redundancy.
    block_table  int32 [R, blocks]; ends int32 [R], at most width: slots that take part
    """
    out = torch.empty((len(ends), cache.layers, cache.heads, width), dtype=torch.float32, device=ends.device)
    launch(
        _mean_cosine, (out[..., 0].numel(),),
        out, cache.pointers, block_table, ends, cache.layers, cache.heads, block_table.shape[1], width,
        EPSILON=EPSILON, ELEMENT=cache.element, TILE=_TILE, **cache.geometry(),
    )  # fmt: skip
    return out


def mean_cosine_reference(cache: PagedCache, block_table: torch.Tensor, ends: torch.Tensor, width: int) -> torch.Tensor:
    """The twin of mean_cosine."""
    out = torch.full((len(ends), cache.layers, cache.heads, width), -float("inf"), device=ends.device)
    for request, end in enumerate(ends.tolist()):
        for layer, keys in enumerate(cache.gather("keys", block_table[request], end)):
            out[request, layer, :, :end] = of_directions(directions(keys))
    return out


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    mean_cosine(PagedCache.at_real_size(), meta(torch.int32, 32, 320), meta(torch.int32, 32), 2112)
