"""The newest queries of every request, kept for scorers in rings that stay where they are, as CUDA graphs ask."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import meta

_TILE = 1024


@kernel
def _record(
    queries: tl.tensor,
    ring: tl.tensor,
    slot_mapping: tl.tensor,
    ring_rows: tl.tensor,
    n: tl.tensor,
    newest: tl.tensor,
    WINDOW: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE_TOKEN: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    row, position = tl.load(ring_rows + token).to(tl.int64), tl.load(n + token)
    real = (tl.load(slot_mapping + token) >= 0) & (row >= 0)
    # of a prefill's tokens only the newest WINDOW: older ones would race with them for the same places
    real = real & (position > tl.load(newest + row, mask=real, other=0) - WINDOW)
    element = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = real & (element < WIDTH)
    query = tl.load(queries + token * STRIDE_TOKEN + element, mask=mask)
    tl.store(ring + (row * WINDOW + position % WINDOW) * WIDTH + element, query, mask=mask)


def record(
    queries: torch.Tensor,
    ring: torch.Tensor,
    slot_mapping: torch.Tensor,
    ring_rows: torch.Tensor,
    n: torch.Tensor,
    newest: torch.Tensor,
) -> None:
    """Write the post-RoPE queries of one layer to place n mod w of their request's ring.

    queries       [T, H_q, D], contiguous in H_q and D, in the ring's dtype
    ring          [rows, w, H_q, D] contiguous, one layer's
    slot_mapping  int64 [T]: tokens with -1 are padding and record nothing
    ring_rows     int32 [T]: row of each token's request in the ring, -1 = records nothing
    n             int64 [T]: logical positions
    newest        int64 [rows]: logical position of the newest token of each request in this batch
    """
    tokens, width = queries.shape[0], queries[0].numel()
    bits = torch.int16 if queries.element_size() == 2 else torch.int32
    launch(
        _record, (tokens, triton.cdiv(width, _TILE)),
        queries.view(bits), ring.view(bits), slot_mapping, ring_rows, n, newest,
        WINDOW=ring.shape[1], WIDTH=width, STRIDE_TOKEN=queries.stride(0), TILE=_TILE,
    )  # fmt: skip


def record_reference(
    queries: torch.Tensor,
    ring: torch.Tensor,
    slot_mapping: torch.Tensor,
    ring_rows: torch.Tensor,
    n: torch.Tensor,
    newest: torch.Tensor,
) -> None:
    """The twin of record."""
    window = ring.shape[1]
    row = ring_rows.long()
    real = (slot_mapping >= 0) & (row >= 0)
    real &= n > newest[row.clamp(min=0)] - window
    ring[row[real], n[real] % window] = queries[real]


def newest_queries(ring: torch.Tensor, tokens: int) -> torch.Tensor:
    """The last min(w, tokens) queries of one request, oldest first: [..., H_q, w', D] of its ring [..., w, H_q, D]."""
    window = ring.shape[-3]
    place = torch.arange(max(tokens - window, 0), tokens, device=ring.device) % window
    return ring.index_select(-3, place).transpose(-3, -2)


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    queries = meta(torch.bfloat16, 256, 48, 128)[:, :32]
    for window in (8, 64):
        record(
            queries, meta(torch.bfloat16, 256, window, 32, 128), meta(torch.int64, 256), meta(torch.int32, 256),
            meta(torch.int64, 256), meta(torch.int64, 256),
        )  # fmt: skip
