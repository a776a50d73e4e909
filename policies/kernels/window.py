"""Attention of the newest queries over a paged cache: scoring/window.mean_attention and max_attention in one pass each.

One program serves one head: over its keys once for the maximum and sum of every query's row, once more for the mean of
the rows. Logits live in registers, a tile of slots at a time.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import PagedCache, finite_rows, layer_base, load_rows, meta
from policies.kernels.recorder import newest_queries
from policies.scoring.window import max_attention, mean_attention

_TILE = 64
_LEAST = 16  # rows of the smallest matrix product that tensor cores have


@triton.jit
def _queries(
    ring: tl.tensor, window: tl.tensor, n_query_heads: tl.tensor, SIZE: tl.constexpr, ROWS: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[ROWS, SIZE_PADDED] of one query head; `ring` points to its first row."""
    row, element = tl.arange(0, ROWS), tl.arange(0, SIZE_PADDED)
    offset = row.to(tl.int64)[:, None] * n_query_heads * SIZE + element[None, :]
    return tl.load(ring + offset, mask=(row < window)[:, None] & (element < SIZE)[None, :], other=0.0)


@triton.jit
def _logits(
    ring: tl.tensor, first: tl.tensor, keys: tl.tensor, window: tl.tensor, n_query_heads: tl.tensor,
    SCALE: tl.constexpr, MEMBERS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, SIZE_PADDED: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Largest logit of the members, [ROWS, TILE]; `first` are the queries of member 0."""
    turned = tl.trans(keys)
    z = tl.dot(first, turned, input_precision="ieee")
    for member in tl.static_range(1, MEMBERS):
        queries = _queries(ring + member * SIZE, window, n_query_heads, SIZE, ROWS, SIZE_PADDED)
        z = tl.maximum(z, tl.dot(queries, turned, input_precision="ieee"), propagate_nan=tl.PropagateNan.ALL)
    return z * SCALE


@triton.jit
def add_to_softmax(largest: tl.tensor, total: tl.tensor, z: tl.tensor) -> tl.tensor:
    """Maximum and sum of exp(z - maximum) of every row [ROWS], with the logits [ROWS, TILE] counted in."""
    higher = tl.maximum(largest, tl.max(z, 1))
    # before the first usable key there is nothing to rescale, and -inf - -inf would be NaN for good
    kept = tl.where(largest == -float("inf"), 0.0, total * tl.exp(largest - higher))
    new = tl.where(z == -float("inf"), 0.0, tl.exp(z - higher[:, None]))
    return higher, kept + tl.sum(new, 1)


@kernel
def _window(
    out: tl.tensor,
    pointers: tl.tensor,
    block_table: tl.tensor,
    ends: tl.tensor,
    rings: tl.tensor,
    ring_rows: tl.tensor,
    tokens: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    n_blocks: tl.int32,
    n_ring_rows: tl.int32,
    n_query_heads: tl.int32,
    width: tl.int32,
    SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    MEMBERS: tl.constexpr,
    FILL: tl.constexpr,
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
    request, layer, query_head = row // (n_layers * n_heads), row // n_heads % n_layers, row % n_heads * MEMBERS
    head = query_head // GROUP
    end, table = tl.load(ends + request), block_table + request * n_blocks
    window = tl.minimum(tl.load(tokens + request), WINDOW)
    ring_row = layer * n_ring_rows + tl.load(ring_rows + request)
    ring = rings + (ring_row * WINDOW * n_query_heads + query_head) * SIZE
    first = _queries(ring, window, n_query_heads, SIZE, ROWS, SIZE_PADDED)
    base = layer_base(pointers, layer, ELEMENT, SIZE)
    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, end, TILE):
        slot = start + tl.arange(0, TILE)
        keys = load_rows(base, table, slot, head, end, BLOCK, SIZE, SIZE_PADDED, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
        z = _logits(ring, first, keys, window, n_query_heads, SCALE, MEMBERS, SIZE, ROWS, SIZE_PADDED)
        z = tl.where((finite_rows(keys) & (slot < end))[None, :], z, -float("inf"))
        largest, total = add_to_softmax(largest, total, z)
    queries = tl.arange(0, ROWS)
    for start in range(0, width, TILE):
        slot = start + tl.arange(0, TILE)
        keys = load_rows(base, table, slot, head, end, BLOCK, SIZE, SIZE_PADDED, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
        z = _logits(ring, first, keys, window, n_query_heads, SCALE, MEMBERS, SIZE, ROWS, SIZE_PADDED)
        weight = tl.exp(z - largest[:, None]) / total[:, None]
        # a query that is not finite has no say
        weight = tl.where((weight == weight) & (queries < window)[:, None], weight, 0.0)
        mean = tl.where(finite_rows(keys), tl.sum(weight, 0) / window, float("nan"))
        tl.store(out + row * width + slot, tl.where(slot < end, mean, FILL), mask=slot < width)


def window_attention(
    cache: PagedCache,
    block_table: torch.Tensor,
    ends: torch.Tensor,
    rings: torch.Tensor,
    ring_rows: torch.Tensor,
    tokens: torch.Tensor,
    width: int,
    reduce: str,
) -> torch.Tensor:
    """Softmax over slots and mean over the newest queries, fp32 [R, L, H', width], ready for pooling over slots.

    block_table  int32 [R, blocks]; ends int32 [R], at most width: slots in the softmax
    rings        [L, rows, w, H_q, D], in the cache's dtype (kernels.recorder); ring_rows int32 [R]
    tokens       int32 [R]: tokens so far, at least 1; the newest min(w, tokens) queries are in the ring
    reduce       "mean": one row per query head, H' = H_q, 0 from slot `ends` on (average pools count absent as 0);
                 "max": largest logit of the group first, H' = H, -inf from slot `ends` on
    """
    _, n_rows, window, query_heads, size = rings.shape
    group = query_heads // cache.heads
    members, heads, fill = (1, query_heads, 0.0) if reduce == "mean" else (group, cache.heads, -math.inf)
    out = torch.empty((len(ends), cache.layers, heads, width), dtype=torch.float32, device=ends.device)
    launch(
        _window, (out[..., 0].numel(),),
        out, cache.pointers, block_table, ends, rings, ring_rows, tokens,
        cache.layers, heads, block_table.shape[1], n_rows, query_heads, width,
        SCALE=1 / math.sqrt(size), WINDOW=window, ROWS=max(_LEAST, triton.next_power_of_2(window)),
        GROUP=group, MEMBERS=members, FILL=fill, ELEMENT=cache.element, TILE=_TILE, **cache.geometry(),
    )  # fmt: skip
    return out


def window_attention_reference(
    cache: PagedCache,
    block_table: torch.Tensor,
    ends: torch.Tensor,
    rings: torch.Tensor,
    ring_rows: torch.Tensor,
    tokens: torch.Tensor,
    width: int,
    reduce: str,
) -> torch.Tensor:
    """The twin of window_attention."""
    heads, fill = (rings.shape[3], 0.0) if reduce == "mean" else (cache.heads, -math.inf)
    out = torch.full((len(ends), cache.layers, heads, width), fill, device=ends.device)
    for request, (end, row, count) in enumerate(zip(ends.tolist(), ring_rows.tolist(), tokens.tolist(), strict=True)):
        for layer, keys in enumerate(cache.gather("keys", block_table[request], end)):
            queries = newest_queries(rings[layer, row], count)
            scores = mean_attention(queries, keys).flatten(0, 1) if reduce == "mean" else max_attention(queries, keys)
            out[request, layer, :, :end] = scores
    return out


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    cache, table, number = PagedCache.at_real_size(), meta(torch.int32, 32, 320), meta(torch.int32, 32)
    for window, reduce in ((64, "mean"), (8, "max")):
        rings = meta(torch.bfloat16, 36, 256, window, 32, 128)
        window_attention(cache, table, number, rings, number, number, 2112, reduce)
