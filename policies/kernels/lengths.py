"""Physical slots and lengths of a batch, in the tensors that attention reads: one small launch a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import meta

_TILE = 128


@dataclass(frozen=True)
class Places:
    """Where the newest tokens of a batch lie; int32 [rows] in tensors that stay where they are, as CUDA graphs ask.

    cached  slots of each batch row in this forward, 0 behind the last request
    tokens  token of the batch that each row decodes
    slots   its slot, -1 where vLLM's own mapping holds
    """

    cached: torch.Tensor
    tokens: torch.Tensor
    slots: torch.Tensor


@kernel
def _rewrite(
    mapping: tl.tensor,
    lengths: tl.tensor,
    block_table: tl.tensor,
    cached: tl.tensor,
    tokens: tl.tensor,
    slots: tl.tensor,
    rows: tl.int32,
    n_blocks: tl.int32,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = row < rows
    tl.store(lengths + row, tl.load(cached + row, mask=inside), mask=inside)
    slot = tl.load(slots + row, mask=inside, other=-1)
    real = slot >= 0
    block = tl.load(block_table + row.to(tl.int64) * n_blocks + slot // BLOCK, mask=real, other=0).to(tl.int64)
    token = tl.load(tokens + row, mask=real, other=0)
    tl.store(mapping + token, block * BLOCK + slot % BLOCK, mask=real)


def rewrite(
    mapping: torch.Tensor, lengths: torch.Tensor, block_table: torch.Tensor, places: Places, block_size: int
) -> None:
    """Write the slots of decoded tokens into vLLM's slot mapping, and all lengths into a tensor of our own.

    mapping      int64 [T]: block * block_size + slot in it; other tokens keep theirs
    lengths      int32 [rows]
    block_table  int32 [rows, blocks]
    """
    rows = len(lengths)
    launch(
        _rewrite, (triton.cdiv(rows, _TILE),),
        mapping, lengths, block_table, places.cached, places.tokens, places.slots, rows, block_table.shape[1],
        BLOCK=block_size, TILE=_TILE,
    )  # fmt: skip


def rewrite_reference(
    mapping: torch.Tensor, lengths: torch.Tensor, block_table: torch.Tensor, places: Places, block_size: int
) -> None:
    """The twin of rewrite."""
    lengths.copy_(places.cached[: len(lengths)])
    row = (places.slots[: len(lengths)] >= 0).nonzero()[:, 0]
    slot = places.slots[row].long()
    mapping[places.tokens[row].long()] = block_table[row, slot // block_size].long() * block_size + slot % block_size


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    number = meta(torch.int32, 256)
    rewrite(meta(torch.int64, 8192), number, meta(torch.int32, 256, 320), Places(number, number, number), 16)
