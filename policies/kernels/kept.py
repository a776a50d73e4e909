"""What an event leaves behind, written down where the cache lies: the hash of its kept sets and the slots to come.

policies/retention.py's hashes on the device, so that telemetry never copies a table to the host between events.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import Events, meta
from policies.retention import kept_crcs

_TILE = 256


@dataclass(frozen=True)
class Ledger:
    """What a worker keeps of each of its requests; on the cache's device, in tensors that stay where they are.

    positions  int32 [rows, L, H, capacity]: logical position in every slot, ahead of time up to the next event
    counted    int64 [rows, 4]: bits of kept_crc so far; events (in place: overwritten tokens); what the newest event
               (token) added to kept_crc, in the column of its index's parity, the other being 0
    before     int32 [rows, L, H, width]: positions before the newest event, where width is the capacity; in place
               element 0 is what the newest token overwrote
    layers, heads  int64 [L], [H]: global indices
    """

    positions: torch.Tensor
    counted: torch.Tensor
    before: torch.Tensor
    layers: torch.Tensor
    heads: torch.Tensor


@triton.jit
def mix(word: tl.tensor) -> tl.tensor:
    """SplitMix64's finaliser on the bits of int64, as policies/retention.py has it; shifts bring in zeros."""
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return word ^ ((word >> 31) & 0x1FFFFFFFF)


@triton.jit
def set_hash(time: tl.tensor, layer: tl.tensor, head: tl.tensor, members: tl.tensor) -> tl.tensor:
    """Hash of one head's set, int64; `members` is the sum of member_hash over its positions."""
    return mix(mix(mix(mix(time.to(tl.int64) + -0x61C8864680B583EB) + layer) + head) ^ members)


@triton.jit
def member_hash(position: tl.tensor) -> tl.tensor:
    """Hash of a logical position, int64."""
    return mix(position.to(tl.int64) + -0x61C8864680B583EB)


@triton.jit
def count_it(
    counted: tl.tensor, row: tl.tensor, found: tl.tensor, parity: tl.tensor, count: tl.tensor, first: tl.tensor
) -> None:
    """Enter the hash of one head's set; the launch's `first` program counts, and empties the column of the next."""
    own = counted + 4 * row
    tl.atomic_xor(own, found)
    tl.atomic_xor(own + 2 + parity, found)
    tl.atomic_add(own + 1, count.to(tl.int64), mask=first)
    tl.store(own + 3 - parity, tl.zeros((), tl.int64), mask=first)


@kernel
def _settle(
    positions: tl.tensor,
    counted: tl.tensor,
    layers: tl.tensor,
    heads: tl.tensor,
    table_rows: tl.tensor,
    keep: tl.tensor,
    events: tl.tensor,
    n: tl.tensor,
    coming: tl.tensor,
    counts: tl.tensor,
    parity: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    capacity: tl.int32,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    request, layer, head = row // (n_layers * n_heads), row // n_heads % n_layers, row % n_heads
    table_row, kept = tl.load(table_rows + request).to(tl.int64), tl.load(keep + request)
    own = positions + ((table_row * n_layers + layer) * n_heads + head) * capacity
    members = tl.zeros((TILE,), tl.int64)
    for start in range(0, kept, TILE):
        slot = start + tl.arange(0, TILE)
        hashed = member_hash(tl.load(own + slot, mask=slot < kept, other=0))
        members += tl.where(slot < kept, hashed, 0)
    found = set_hash(tl.load(events + request), tl.load(layers + layer), tl.load(heads + head), tl.sum(members, 0))
    end, first = tl.minimum(kept + tl.load(coming + request), capacity), tl.load(n + request)
    count_it(
        counted, table_row, found, tl.load(parity + request), tl.load(counts + request), (layer == 0) & (head == 0)
    )
    for start in range(kept, end, TILE):
        slot = start + tl.arange(0, TILE)
        tl.store(own + slot, first + slot - kept, mask=slot < end)


def settle(
    ledger: Ledger,
    after: Events,
    events: torch.Tensor,
    n: torch.Tensor,
    coming: torch.Tensor,
    counts: torch.Tensor,
    parity: torch.Tensor,
) -> None:
    """Add the kept sets of R events to their hashes, and note the positions of the slots behind K'.

    after   the events, whose moves are done
    events, n, coming, counts, parity  int32 [R]: index of the event; its token; tokens until the next event, 0 when the
            slots behind K' stay unused; 1 when it counts as an event, else 0; its column, 0 or 1 in turn
    """
    _, layers, heads, capacity = ledger.positions.shape
    launch(
        _settle, (len(after.rows) * layers * heads,),
        ledger.positions, ledger.counted, ledger.layers, ledger.heads, after.rows, after.keep, events, n, coming,
        counts, parity, layers, heads, capacity,
        TILE=_TILE,
    )  # fmt: skip


def settle_reference(
    ledger: Ledger,
    after: Events,
    events: torch.Tensor,
    n: torch.Tensor,
    coming: torch.Tensor,
    counts: torch.Tensor,
    parity: torch.Tensor,
) -> None:
    """The twin of settle: policies.retention.kept_crcs, request by request."""
    layers, heads = ledger.layers.tolist(), ledger.heads.tolist()
    columns = (after.rows, after.keep, events, n, coming, counts, parity)
    for row, keep, event, first, count, counted, turn in zip(*(column.tolist() for column in columns), strict=True):
        crc = kept_crcs(np.array([event]), layers, heads, ledger.positions[row][None, ..., :keep])
        count_reference(ledger, row, int(crc.view(np.int64)[0]), turn, counted, first=True)
        room = min(count, ledger.positions.shape[3] - keep)
        ledger.positions[row, ..., keep : keep + room] = torch.arange(
            first, first + room, dtype=torch.int32, device=ledger.positions.device
        )


def count_reference(ledger: Ledger, row: int, found: int, parity: int, count: int, first: bool) -> None:
    """The twin of count_it."""
    ledger.counted[row, 0] ^= found
    ledger.counted[row, 2 + parity] ^= found
    if first:
        ledger.counted[row, 1] += count
        ledger.counted[row, 3 - parity] = 0


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    number = meta(torch.int32, 32)
    settle(ledger_at_real_size(), Events.at_real_size(2048), number, number, number, number, number)


def ledger_at_real_size() -> Ledger:
    """Without memory: 36 layers, 8 heads, 2112 slots, 512 rows."""
    table = meta(torch.int32, 512, 36, 8, 2112)
    return Ledger(table, meta(torch.int64, 512, 4), table, meta(torch.int64, 36), meta(torch.int64, 8))
