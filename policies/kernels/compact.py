"""Moving cached rows after a selection: keys, values and logical positions of many requests and all layers at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policies.compaction import Moves
from policies.kernels.launch import kernel, launch, staged
from policies.kernels.paged import Events, PagedCache, layer_base, meta, row_offsets

_ROWS = 32


@kernel
def _fill_holes(
    pointers: tl.tensor,
    positions: tl.tensor,
    block_table: tl.tensor,
    table_rows: tl.tensor,
    src: tl.tensor,
    dst: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    n_blocks: tl.int32,
    n_moves: tl.int32,
    capacity: tl.int32,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    request, layer, head = row // (n_layers * n_heads), row // n_heads % n_layers, row % n_heads
    move = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    source = tl.load(src + row * n_moves + move, mask=move < n_moves, other=-1)
    target = tl.load(dst + row * n_moves + move, mask=move < n_moves, other=-1)
    real = source >= 0
    table = block_table + request * n_blocks
    read = row_offsets(table, source, head, real, BLOCK, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
    write = row_offsets(table, target, head, real, BLOCK, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
    element = tl.arange(0, SIZE_PADDED)
    mask = real[:, None] & (element < SIZE)[None, :]
    for which in tl.static_range(2):
        base = layer_base(pointers, which * n_layers + layer, BITS, SIZE)
        moved = tl.load(base + read[:, None] + element[None, :], mask=mask)
        tl.store(base + write[:, None] + element[None, :], moved, mask=mask)
    own = positions + ((tl.load(table_rows + request).to(tl.int64) * n_layers + layer) * n_heads + head) * capacity
    tl.store(own + target, tl.load(own + source, mask=real), mask=real)


def fill_holes(cache: PagedCache, positions: torch.Tensor, events: Events, moves: Moves) -> None:
    """Move row src to slot dst of every head, in place, also in positions int32 [rows, L, H, capacity].

    moves   int32 [R, L, H, M], -1 = none; no dst may be another move's src (select.hole_moves)
    """
    requests, layers, heads, count = moves.src.shape
    launch(
        _fill_holes, (requests * layers * heads, triton.cdiv(count, _ROWS)),
        cache.pointers, positions, events.block_table, events.rows, moves.src, moves.dst,
        layers, heads, events.block_table.shape[1], count, positions.shape[3],
        BITS=cache.bits, ROWS=_ROWS, **cache.geometry(),
    )  # fmt: skip


def fill_holes_reference(cache: PagedCache, positions: torch.Tensor, events: Events, moves: Moves) -> None:
    """The twin of fill_holes."""
    _move_reference(cache, positions, events, moves.src, moves.dst)


@staged
@kernel
def _shift_down(
    pointers: tl.tensor,
    positions: tl.tensor,
    block_table: tl.tensor,
    table_rows: tl.tensor,
    kept: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    n_blocks: tl.int32,
    n_kept: tl.int32,
    capacity: tl.int32,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
) -> None:
    # program_id(1): 0 keys, 1 values, 2 positions
    row, which = tl.program_id(0).to(tl.int64), tl.program_id(1)
    request, layer, head = row // (n_layers * n_heads), row // n_heads % n_layers, row % n_heads
    table = block_table + request * n_blocks
    own = positions + ((tl.load(table_rows + request).to(tl.int64) * n_layers + layer) * n_heads + head) * capacity
    base = layer_base(pointers, tl.minimum(which, 1) * n_layers + layer, BITS, SIZE)
    element = tl.arange(0, SIZE_PADDED)
    # Upwards, a tile at a time: kept[j] >= j, so no later tile reads what this one writes; within the tile the barrier
    # has every row read before any is written.
    for start in range(0, n_kept, ROWS):
        target = start + tl.arange(0, ROWS)
        source = tl.load(kept + row * n_kept + target, mask=target < n_kept, other=-1)
        real = source > target
        if which == 2:
            position = tl.load(own + source, mask=real)
            tl.debug_barrier()
            tl.store(own + target, position, mask=real)
        else:
            read = row_offsets(table, source, head, real, BLOCK, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
            write = row_offsets(table, target, head, real, BLOCK, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
            mask = real[:, None] & (element < SIZE)[None, :]
            moved = tl.load(base + read[:, None] + element[None, :], mask=mask)
            tl.debug_barrier()
            tl.store(base + write[:, None] + element[None, :], moved, mask=mask)


def shift_down(cache: PagedCache, positions: torch.Tensor, events: Events, kept: torch.Tensor) -> None:
    """Bring row kept[j] of every head to slot j, in place, also in positions int32 [rows, L, H, capacity].

    kept   int32 [R, L, H, max_keep] ascending, -1 behind the last (select.kept_slots)
    """
    requests, layers, heads, count = kept.shape
    launch(
        _shift_down, (requests * layers * heads, 3),
        cache.pointers, positions, events.block_table, events.rows, kept,
        layers, heads, events.block_table.shape[1], count, positions.shape[3],
        BITS=cache.bits, ROWS=_ROWS, **cache.geometry(),
    )  # fmt: skip


def shift_down_reference(cache: PagedCache, positions: torch.Tensor, events: Events, kept: torch.Tensor) -> None:
    """The twin of shift_down."""
    target = torch.arange(kept.shape[3], dtype=torch.int32, device=kept.device).expand_as(kept)
    _move_reference(cache, positions, events, kept, torch.where(kept < 0, kept, target))


def _move_reference(
    cache: PagedCache, positions: torch.Tensor, events: Events, src: torch.Tensor, dst: torch.Tensor
) -> None:
    """Every row of a head is read before any is written."""
    block = cache.keys[0].shape[1]
    for request, layer, head in (
        (r, i, h) for r in range(src.shape[0]) for i in range(src.shape[1]) for h in range(src.shape[2])
    ):
        real = src[request, layer, head] >= 0
        source, target = src[request, layer, head][real].long(), dst[request, layer, head][real].long()
        table = events.block_table[request].long()
        for rows in (cache.keys[layer], cache.values[layer]):
            rows[table[target // block], target % block, head] = rows[table[source // block], source % block, head]
        own = positions[int(events.rows[request]), layer, head]
        own[target] = own[source]


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    cache, events, positions = PagedCache.at_real_size(), Events.at_real_size(2048), meta(torch.int32, 64, 36, 8, 2112)
    moves = meta(torch.int32, 32, 36, 8, 64)
    fill_holes(cache, positions, events, Moves(moves, moves))
    shift_down(cache, positions, events, meta(torch.int32, 32, 36, 8, 2048))
