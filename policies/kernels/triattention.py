"""TriAttention's raw scores over a paged cache: scoring/triattention.head_scores where the keys lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import PagedCache, layer_base, meta, row_offsets
from policies.scoring.triattention import Weights
from policies.scoring.triattention import head_scores as of_layer

_TILE = 32


@kernel
def _scores(
    out: tl.tensor,
    pointers: tl.tensor,
    block_table: tl.tensor,
    ends: tl.tensor,
    queries: tl.tensor,
    norms: tl.tensor,
    real_index: tl.tensor,
    imag_index: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    n_blocks: tl.int32,
    n_distances: tl.int32,
    width: tl.int32,
    GROUP: tl.constexpr,
    BANDS: tl.constexpr,
    BANDS_PADDED: tl.constexpr,
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
    band = tl.arange(0, BANDS_PADDED)
    inside = band < BANDS
    real_at, imag_at = (
        tl.load(real_index + band, mask=inside, other=0),
        tl.load(imag_index + band, mask=inside, other=0),
    )
    table = block_table + request * n_blocks
    offset = row_offsets(table, slot, head, slot < end, BLOCK, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)[:, None]
    base, mask = layer_base(pointers, layer, ELEMENT, SIZE), (slot < end)[:, None] & inside[None, :]
    real = tl.load(base + offset + real_at[None, :], mask=mask, other=0.0).to(tl.float32)
    imag = tl.load(base + offset + imag_at[None, :], mask=mask, other=0.0).to(tl.float32)
    length = tl.sqrt_rn(real * real + imag * imag)
    for member in tl.static_range(GROUP):
        query_head = layer * n_heads * GROUP + head * GROUP + member
        weight = tl.load(norms + query_head * BANDS + band, mask=inside, other=0.0)
        by_norm = tl.sum(length * weight[None, :], 1)
        by_angle = tl.zeros((TILE,), tl.float32)
        for distance in range(n_distances):
            query = queries + ((request * n_distances + distance) * n_layers * n_heads * GROUP + query_head) * SIZE
            real_query = tl.load(query + real_at, mask=inside, other=0.0)
            imag_query = tl.load(query + imag_at, mask=inside, other=0.0)
            product = tl.sum(real * real_query[None, :] + imag * imag_query[None, :], 1)
            by_angle = tl.where((distance == 0) | (product > by_angle) | (product != product), product, by_angle)
        score = tl.where(slot < end, by_norm + by_angle, float("nan"))
        tl.store(out + (row * GROUP + member) * width + slot, score, mask=slot < width)


def head_scores(
    cache: PagedCache,
    block_table: torch.Tensor,
    ends: torch.Tensor,
    queries: torch.Tensor,
    weights: Weights,
    width: int,
) -> torch.Tensor:
    """Raw scores of every query head, fp32 [R, L, H_q, width]; NaN from slot `ends` on.

    block_table  int32 [R, blocks]; ends int32 [R], at most width: slots looked at
    queries      fp32 [R, Δ, L, H_q, D]: each request's virtual queries (scoring.triattention.event_weights at its t)
    weights      norms [L, H_q, D/2] and band dimensions, on the cache's device; the same for all requests
    """
    requests, distances, layers, query_heads, size = queries.shape
    out = torch.empty((requests, layers, query_heads, width), dtype=torch.float32, device=ends.device)
    bands = size // 2
    launch(
        _scores, (requests * layers * cache.heads, triton.cdiv(width, _TILE)),
        out, cache.pointers, block_table, ends, queries, weights.norms, weights.real, weights.imag,
        layers, cache.heads, block_table.shape[1], distances, width,
        GROUP=query_heads // cache.heads, BANDS=bands, BANDS_PADDED=triton.next_power_of_2(bands),
        ELEMENT=cache.element, TILE=_TILE, **cache.geometry(),
    )  # fmt: skip
    return out


def head_scores_reference(
    cache: PagedCache,
    block_table: torch.Tensor,
    ends: torch.Tensor,
    queries: torch.Tensor,
    weights: Weights,
    width: int,
) -> torch.Tensor:
    """The twin of head_scores."""
    requests, _, layers, query_heads, _ = queries.shape
    out = torch.full((requests, layers, query_heads, width), float("nan"), device=ends.device)
    for request, end in enumerate(ends.tolist()):
        for layer, keys in enumerate(cache.gather("keys", block_table[request], end)):
            one = slice(layer, layer + 1)
            own = Weights(queries[request, :, one], weights.norms[one], weights.real, weights.imag)
            out[request, layer, :, :end] = of_layer(keys, own)
    return out


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    bands = meta(torch.int64, 64)
    weights = Weights(meta(torch.float32, 0), meta(torch.float32, 36, 32, 64), bands, bands)
    queries = meta(torch.float32, 32, 1, 36, 32, 128)
    head_scores(PagedCache.at_real_size(), meta(torch.int32, 32, 320), meta(torch.int32, 32), queries, weights, 2112)
