"""The draws of policies/draws.py where the cache lives: Philox-4x32-10 words in torch and in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policies.kernels.launch import kernel, launch
from policies.kernels.paged import meta

_LOW = 0xFFFFFFFF
_TILE = 1024


@triton.jit
def first_words(seed: tl.tensor, event: tl.tensor, layer: tl.tensor, head: tl.tensor, slot: tl.tensor) -> tl.tensor:
    """Words 0 and 1, uint32, of the counters (event, layer, head, slot) under an int64 seed."""
    none = slot * 0
    key_low, key_high = (seed & 0xFFFFFFFF).to(tl.uint32), ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero, one, _, _ = tl.philox_impl(
        (none + event).to(tl.uint32), (none + layer).to(tl.uint32), (none + head).to(tl.uint32), slot.to(tl.uint32),
        key_low, key_high, 10,
    )  # fmt: skip
    return zero, one


@triton.jit
def random_key(seed: tl.tensor, event: tl.tensor, layer: tl.tensor, head: tl.tensor, slot: tl.tensor) -> tl.tensor:
    """Draw.keys: the first 63 bits, int64."""
    zero, one = first_words(seed, event, layer, head, slot)
    return (zero.to(tl.int64) << 31) | (one >> 1).to(tl.int64)


@kernel
def _draw(
    out: tl.tensor,
    seeds: tl.tensor,
    events: tl.tensor,
    layers: tl.tensor,
    heads: tl.tensor,
    n_heads: tl.int32,
    slots: tl.int32,
    RUN: tl.constexpr,
    UNIFORM: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    layer, head = tl.load(layers + row // n_heads), tl.load(heads + row % n_heads)
    slot = tl.program_id(1) * TILE + tl.arange(0, TILE)
    counter = (slot // RUN * RUN).to(tl.int64)
    seed, event = tl.load(seeds + row // n_heads), tl.load(events + row // n_heads)
    if UNIFORM:
        word, _ = first_words(seed, event, layer, head, counter)
        drawn = (word >> 8).to(tl.float32) * (1.0 / 16777216)
    else:
        drawn = random_key(seed, event, layer, head, counter)
    tl.store(out + row * slots + slot, drawn, mask=slot < slots)


def draw(
    seeds: torch.Tensor,
    events: torch.Tensor,
    layers: torch.Tensor,
    heads: torch.Tensor,
    slots: int,
    run: int = 1,
    uniform: bool = False,
) -> torch.Tensor:
    """Draws of N rows, [N, H, slots]: int64 keys in [0, 2^63), or fp32 in [0, 1) with 24 bits.

    seeds, events, layers  int64 [N]: bits of the u64 eviction seed, event and global layer index of each row
    heads                  int64 [H]: global indices, or draws.SHARED_HEAD alone for draws that all heads share
    run                    slots of one run, counted from slot 0, have its first slot's draw
    """
    shape = (len(seeds), len(heads), slots)
    out = torch.empty(shape, dtype=torch.float32 if uniform else torch.int64, device=seeds.device)
    launch(
        _draw, (len(seeds) * len(heads), triton.cdiv(slots, _TILE)),
        out, seeds, events, layers, heads, len(heads), slots,
        RUN=run, UNIFORM=uniform, TILE=_TILE,
    )  # fmt: skip
    return out


def draw_reference(
    seeds: torch.Tensor,
    events: torch.Tensor,
    layers: torch.Tensor,
    heads: torch.Tensor,
    slots: int,
    run: int = 1,
    uniform: bool = False,
) -> torch.Tensor:
    """The twin of draw, on any device."""
    slot = torch.arange(slots, device=seeds.device) // run * run
    seeds, events, layers = (word[:, None, None] for word in (seeds, events, layers))
    first, second = first_words_reference(seeds, events, layers, heads[:, None], slot)
    if uniform:
        return (first >> 8).float() * 2.0**-24
    return first << 31 | second >> 1


def first_words_reference(
    seeds: torch.Tensor, c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor, c3: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Words 0 and 1, u32 values in int64, of Philox-4x32-10 over the broadcast shape of int64 arguments."""
    k0, k1 = seeds & _LOW, (seeds >> 32) & _LOW
    for _ in range(10):
        # int64 products wrap, but their 64 bits are those of the unsigned product
        p, q = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (q >> 32) & _LOW ^ c1 ^ k0, q & _LOW, (p >> 32) & _LOW ^ c3 ^ k1, p & _LOW
        k0, k1 = k0 + 0x9E3779B9 & _LOW, k1 + 0xBB67AE85 & _LOW
    return c0, c1


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    rows, heads = meta(torch.int64, 36), meta(torch.int64, 8)
    for uniform in (False, True):
        draw(rows, rows, rows, heads, 2112, uniform=uniform)
