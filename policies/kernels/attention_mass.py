"""The attention that a decode step gives to every cached slot, added up for H2O; FlashAttention does not return it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import PagedCache, load_rows, meta
from policies.kernels.window import add_to_softmax

_TILE = 64
_LEAST = 16  # rows of the smallest matrix product that tensor cores have


@kernel
def _add(
    mass: tl.tensor,
    query: tl.tensor,
    key_cache: tl.tensor,
    token_rows: tl.tensor,
    block_table: tl.tensor,
    records: tl.tensor,
    cached: tl.tensor,
    n_heads: tl.int32,
    n_blocks: tl.int32,
    capacity: tl.int32,
    SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    QUERY_TOKEN: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
) -> None:
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    request = tl.load(token_rows + token).to(tl.int64)
    record = tl.load(records + request, mask=request >= 0, other=-1).to(tl.int64)
    if record >= 0:
        end, table = tl.load(cached + request), block_table + request * n_blocks
        member, element = tl.arange(0, ROWS), tl.arange(0, SIZE_PADDED)
        inside = (member < GROUP)[:, None] & (element < SIZE)[None, :]
        offset = token * QUERY_TOKEN + (head * GROUP + member)[:, None] * SIZE + element[None, :]
        queries = tl.load(query + offset, mask=inside, other=0.0)
        largest = tl.full((ROWS,), -float("inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        for start in range(0, end, TILE):
            slot = start + tl.arange(0, TILE)
            keys = load_rows(
                key_cache, table, slot, head, end, BLOCK, SIZE, SIZE_PADDED, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD
            )
            z = tl.dot(queries, tl.trans(keys), input_precision="ieee") * SCALE
            largest, total = add_to_softmax(largest, total, tl.where((slot < end)[None, :], z, -float("inf")))
        own = mass + (record * n_heads + head) * capacity
        for start in range(0, end, TILE):
            slot = start + tl.arange(0, TILE)
            keys = load_rows(
                key_cache, table, slot, head, end, BLOCK, SIZE, SIZE_PADDED, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD
            )
            z = tl.dot(queries, tl.trans(keys), input_precision="ieee") * SCALE
            weight = tl.where((member < GROUP)[:, None], tl.exp(z - largest[:, None]) / total[:, None], 0.0)
            before = tl.load(own + slot, mask=slot < end)
            tl.store(own + slot, before + tl.sum(weight, 0), mask=slot < end)


def add_decode_mass(
    mass: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    token_rows: torch.Tensor,
    block_table: torch.Tensor,
    records: torch.Tensor,
    cached: torch.Tensor,
    scale: float,
) -> None:
    """Add one decode step of one layer: softmax over a request's slots, summed over the group, fp32, in place.

    mass         fp32 [records, H, capacity]
    query        [T, H_q, D], contiguous in H_q and D, in the cache's dtype; key_cache [blocks, block, H, D]
    token_rows   int32 [T]: row of each token's request in the tensors below, -1 = padding or prefill; at most one
                 token a request
    block_table  int32 [R, blocks]; records int32 [R]: row in mass, -1 = adds nothing
    cached       int32 [R]: slots of the request, the new token's included
    """
    _, block, heads, size = key_cache.shape
    group = query.shape[1] // heads
    stride_block, stride_slot, stride_head, _ = key_cache.stride()
    launch(
        _add, (len(token_rows), heads),
        mass, query, key_cache, token_rows, block_table, records, cached, heads, block_table.shape[1], mass.shape[2],
        SCALE=scale, GROUP=group, ROWS=max(_LEAST, triton.next_power_of_2(group)), QUERY_TOKEN=query.stride(0),
        TILE=_TILE, BLOCK=block, SIZE=size, SIZE_PADDED=max(_LEAST, triton.next_power_of_2(size)),
        STRIDE_BLOCK=stride_block, STRIDE_SLOT=stride_slot, STRIDE_HEAD=stride_head,
    )  # fmt: skip


def add_decode_mass_reference(
    mass: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    token_rows: torch.Tensor,
    block_table: torch.Tensor,
    records: torch.Tensor,
    cached: torch.Tensor,
    scale: float,
) -> None:
    """The twin of add_decode_mass."""
    block, heads = key_cache.shape[1:3]
    for token, row in enumerate(token_rows.tolist()):
        if row < 0 or records[row] < 0:
            continue
        slot = torch.arange(int(cached[row]), device=mass.device)
        keys = key_cache[block_table[row, slot // block].long(), slot % block].float()
        grouped = query[token].float().unflatten(0, (heads, -1))
        weights = (grouped @ keys.permute(1, 2, 0) * scale).softmax(-1)
        mass[records[row], :, : len(slot)] += weights.sum(1)


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    number, query = meta(torch.int32, 256), meta(torch.bfloat16, 256, 48, 128)[:, :32]
    add_decode_mass(
        meta(torch.float32, 256, 8, 2112), query, PagedCache.at_real_size(layers=1).keys[0], number,
        meta(torch.int32, 256, 320), number, number, 128**-0.5,
    )  # fmt: skip
