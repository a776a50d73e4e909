"""Writing new rows where in-place policies have one slot per head: the victim is drawn where the row is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from policies.draws import INPLACE_SLOT, inplace_victims
from policies.kernels.kept import Ledger, count_it, count_reference, ledger_at_real_size, member_hash, set_hash
from policies.kernels.launch import kernel, launch
from policies.kernels.paged import PagedCache, meta, row_offsets
from policies.kernels.philox import first_words
from policies.retention import victim_crc


@dataclass(frozen=True)
class Replacing:
    """Facts of the batch's requests, in tensors that stay where they are, as CUDA graphs ask.

    token_rows   int32 [T]: row of each token's request in the tensors below, -1 where nothing is replaced
    block_table  int32 [R, blocks]
    rows         int32 [R]: row of each request in the ledger
    seeds        int64 [R], bits of the u64 eviction seeds
    n            int32 [R]: logical position of the new token
    keep, prot, start  int32 [R]: K', prot and n0 (contracts.md section 1); tokens before `start` replace nothing
    """

    token_rows: torch.Tensor
    block_table: torch.Tensor
    rows: torch.Tensor
    seeds: torch.Tensor
    n: torch.Tensor
    keep: torch.Tensor
    prot: torch.Tensor
    start: torch.Tensor


@kernel
def _write(
    key: tl.tensor,
    value: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    slot_mapping: tl.tensor,
    token_rows: tl.tensor,
    block_table: tl.tensor,
    table_rows: tl.tensor,
    seeds: tl.tensor,
    n: tl.tensor,
    keep: tl.tensor,
    prot: tl.tensor,
    start: tl.tensor,
    positions: tl.tensor,
    counted: tl.tensor,
    before: tl.tensor,
    layers: tl.tensor,
    heads: tl.tensor,
    index: tl.int32,
    n_layers: tl.int32,
    n_blocks: tl.int32,
    capacity: tl.int32,
    width: tl.int32,
    INTERVAL: tl.constexpr,
    SLOT_WORD: tl.constexpr,
    KEY_TOKEN: tl.constexpr,
    KEY_HEAD: tl.constexpr,
    VALUE_TOKEN: tl.constexpr,
    VALUE_HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    STRIDE_BLOCK: tl.constexpr,
    STRIDE_SLOT: tl.constexpr,
    STRIDE_HEAD: tl.constexpr,
) -> None:
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping + token)
    if slot >= 0:
        offset = slot // BLOCK * STRIDE_BLOCK + slot % BLOCK * STRIDE_SLOT + head * STRIDE_HEAD
        row = tl.load(token_rows + token).to(tl.int64)
        if row >= 0:
            position, first = tl.load(n + row), tl.load(start + row)
            if position >= first:
                protected = tl.load(prot + row)
                free = tl.load(keep + row) - protected
                cls = (position - first + free) % INTERVAL
                members = (free - cls + INTERVAL - 1) // INTERVAL
                slot_word = tl.full((), SLOT_WORD, tl.int64)
                layer, global_head = tl.load(layers + index), tl.load(heads + head)
                word, _ = first_words(tl.load(seeds + row), position, layer, global_head, slot_word)
                member = tl.umulhi(word, members.to(tl.uint32)).to(tl.int32)
                victim = protected + cls + member * INTERVAL
                table = block_table + row * n_blocks
                offset = row_offsets(table, victim, head, position >= 0, BLOCK, STRIDE_BLOCK, STRIDE_SLOT, STRIDE_HEAD)
                table_row = tl.load(table_rows + row).to(tl.int64)
                cell = (table_row * n_layers + index) * tl.num_programs(1) + head
                old = tl.load(positions + cell * capacity + victim)
                found = set_hash(position, layer, global_head, member_hash(old))
                tl.store(before + cell * width, old)
                tl.store(positions + cell * capacity + victim, position)
                count_it(counted, table_row, found, position & 1, position * 0 + 1, (index == 0) & (head == 0))
        element = tl.arange(0, SIZE_PADDED)
        inside = element < SIZE
        new = tl.load(key + token * KEY_TOKEN + head * KEY_HEAD + element, mask=inside)
        tl.store(key_cache + offset + element, new, mask=inside)
        new = tl.load(value + token * VALUE_TOKEN + head * VALUE_HEAD + element, mask=inside)
        tl.store(value_cache + offset + element, new, mask=inside)


def write(
    rows: tuple[torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor],
    slot_mapping: torch.Tensor,
    replacing: Replacing,
    ledger: Ledger,
    index: int,
    interval: int,
) -> None:
    """Write the new keys and values of one layer: to the victim of each head, or to the token's slot for all heads.

    rows          keys and values [T, H, D], any strides but a contiguous D, in the cache's dtype
    cache         key and value cache [blocks, block, H, D]
    slot_mapping  int64 [T] = block * block_size + slot in it; -1 writes nothing (padding of a graph)
    ledger        follows every replacement: position in the slot, hash, number
    index         of the layer in the ledger
    """
    key, value = rows
    bits = torch.int16 if key.element_size() == 2 else torch.int32
    tokens, count, size = key.shape
    stride_block, stride_slot, stride_head, _ = cache[0].stride()
    launch(
        _write, (tokens, count),
        key.view(bits), value.view(bits), cache[0].view(bits), cache[1].view(bits), slot_mapping,
        replacing.token_rows, replacing.block_table, replacing.rows, replacing.seeds, replacing.n, replacing.keep,
        replacing.prot, replacing.start, ledger.positions, ledger.counted, ledger.before, ledger.layers, ledger.heads,
        index, len(ledger.layers), replacing.block_table.shape[1], ledger.positions.shape[3], ledger.before.shape[3],
        INTERVAL=interval, SLOT_WORD=INPLACE_SLOT,
        KEY_TOKEN=key.stride(0), KEY_HEAD=key.stride(1), VALUE_TOKEN=value.stride(0), VALUE_HEAD=value.stride(1),
        BLOCK=cache[0].shape[1], SIZE=size, SIZE_PADDED=triton.next_power_of_2(size),
        STRIDE_BLOCK=stride_block, STRIDE_SLOT=stride_slot, STRIDE_HEAD=stride_head, num_warps=1,
    )  # fmt: skip


def write_reference(
    rows: tuple[torch.Tensor, torch.Tensor],
    cache: tuple[torch.Tensor, torch.Tensor],
    slot_mapping: torch.Tensor,
    replacing: Replacing,
    ledger: Ledger,
    index: int,
    interval: int,
) -> None:
    """The twin of write: victims from policies.draws."""
    block, head = cache[0].shape[1], torch.arange(len(ledger.heads), device=ledger.heads.device)
    n, keep, prot, start = (
        getattr(replacing, name).cpu().numpy().astype(np.int64) for name in ("n", "keep", "prot", "start")
    )
    layers, heads = ledger.layers[index : index + 1].cpu().numpy(), ledger.heads.cpu().numpy()
    seeds = replacing.seeds.cpu().numpy().view(np.uint64)
    victims = inplace_victims(seeds, layers, heads, n, keep, prot, start, interval)
    for token, (slot, row) in enumerate(zip(slot_mapping.tolist(), replacing.token_rows.tolist(), strict=True)):
        if slot < 0:
            continue
        blocks, slots = torch.full_like(head, slot // block), torch.full_like(head, slot % block)
        if row >= 0 and n[row] >= start[row]:
            victim, table_row = torch.tensor(victims[row, 0], device=head.device), int(replacing.rows[row])
            blocks, slots = replacing.block_table[row][victim // block].long(), victim % block
            held = ledger.positions[table_row, index]
            crc = victim_crc(n[row : row + 1], layers.tolist(), heads.tolist(), held[head, victim][None, None])
            count_reference(ledger, table_row, int(crc.view(np.int64)[0]), int(n[row]) & 1, 1, first=index == 0)
            ledger.before[table_row, index, :, 0] = held[head, victim]
            held[head, victim] = int(n[row])
        for new, old in zip(rows, cache, strict=True):
            old[blocks, slots, head] = new[token]


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    key, value = meta(torch.bfloat16, 256, 48, 128)[:, 32:].split(8, dim=1)
    cache = PagedCache.at_real_size(layers=1)
    number, table = meta(torch.int32, 256), meta(torch.int32, 256, 320)
    batch = Replacing(number, table, number, meta(torch.int64, 256), number, number, number, number)
    layer = (cache.keys[0], cache.values[0])
    write((key, value), layer, meta(torch.int64, 256), batch, ledger_at_real_size(), 0, 64)
