"""Kept slots of many requests, layers and heads in one launch: policies/select.py where the cache lives.

One program ranks the candidates of one (request, layer, KV head): it halves the range of keys until as many keys as
are to be kept lie above, which random keys allow after about log2(candidates) steps, and never sorts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from policies.base import Scorer
from policies.compaction import Moves, plan
from policies.draws import SHARED_HEAD, Draw
from policies.kernels.launch import kernel, launch
from policies.kernels.paged import Events, meta
from policies.kernels.philox import draw_reference, random_key
from policies.select import select
from policies.view import CacheView


@dataclass(frozen=True)
class Draws:
    """Random ranking: the keyed draws of R events; int64 tensors on the cache's device.

    seeds, events  [R]: bits of the u64 eviction seeds; indices of the events
    layers, heads  [L], [H]: global indices
    shared         one draw for all heads of a layer
    run            slots of one run, counted from slot 0, share a draw
    """

    seeds: torch.Tensor
    events: torch.Tensor
    layers: torch.Tensor
    heads: torch.Tensor
    shared: bool = False
    run: int = 1


Ranking = Draws | torch.Tensor
"""What decides who stays, higher first: draws, or scores fp32 [R, L, H, max_slots]."""


@triton.jit
def _best(keys: tl.tensor, candidate: tl.tensor, count: tl.tensor) -> tl.tensor:
    """Mask of the `count` candidates with the highest int64 keys, lower index first among equals."""
    low = tl.min(tl.where(candidate, keys, 0x7FFFFFFFFFFFFFFF), 0)
    keys = tl.where(candidate, keys, -0x8000000000000000)
    high = tl.max(keys, 0)
    # at least `count` keys are >= low, and fewer than that > high
    while low < high:
        middle = low + (high - low + 1) // 2
        above = tl.sum((keys >= middle).to(tl.int32), 0)
        low = tl.where(above >= count, middle, low)
        high = tl.where(above == count, middle, tl.where(above < count, middle - 1, high))
    left = count - tl.sum((keys > low).to(tl.int32), 0)
    equal = keys == low
    return (keys > low) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= left))


@triton.jit
def _sortable(score: tl.tensor) -> tl.tensor:
    """fp32 to int64 in the same order; -0 equals 0, NaN is lowest."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return tl.where(score != score, -0x80000000, order)


@triton.jit
def _store_ranked(out: tl.tensor, chosen: tl.tensor, slot: tl.tensor, length: tl.tensor) -> None:
    """Write the chosen slots ascending to out[0:length] and -1 behind them."""
    rank = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(out + rank, slot, mask=chosen & (rank < length))
    tl.store(out + slot, -1, mask=(slot >= tl.sum(chosen.to(tl.int32), 0)) & (slot < length))


@kernel
def _select(
    kept: tl.tensor,
    src: tl.tensor,
    dst: tl.tensor,
    scores: tl.tensor,
    seeds: tl.tensor,
    events: tl.tensor,
    layers: tl.tensor,
    heads: tl.tensor,
    slots: tl.tensor,
    prot: tl.tensor,
    recent: tl.tensor,
    keep: tl.tensor,
    n_layers: tl.int32,
    n_heads: tl.int32,
    n_kept: tl.int32,
    n_moves: tl.int32,
    n_scores: tl.int32,
    SCORED: tl.constexpr,
    ORDER: tl.constexpr,
    SHARED: tl.constexpr,
    RUN: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    request, inner = row // (n_layers * n_heads), row % (n_layers * n_heads)
    layer, head = inner // n_heads, inner % n_heads
    n_slots, first, k = tl.load(slots + request), tl.load(prot + request), tl.load(keep + request)
    end = n_slots - tl.load(recent + request)
    slot = tl.arange(0, TILE)
    candidate = (slot >= first) & (slot < end)
    if SCORED:
        keys = _sortable(tl.load(scores + row * n_scores + slot, mask=slot < n_slots, other=0.0))
    else:
        word = tl.full((), 0xFFFFFFFF, tl.int64) if SHARED else tl.load(heads + head)
        seed, event = tl.load(seeds + request), tl.load(events + request)
        keys = random_key(seed, event, tl.load(layers + layer), word, (slot // RUN * RUN).to(tl.int64))
    alive = (slot < n_slots) & ((slot < first) | (slot >= end) | _best(keys, candidate, k - first - (n_slots - end)))
    if ORDER:
        _store_ranked(kept + row * n_kept, alive, slot, n_kept)
    else:
        _store_ranked(src + row * n_moves, alive & (slot >= k), slot, n_moves)
        _store_ranked(dst + row * n_moves, (slot < k) & (alive == 0), slot, n_moves)


def kept_slots(events: Events, ranking: Ranking) -> torch.Tensor:
    """Kept slots ascending, -1 behind the last: int32 [R, L, H, max_keep]. For order-preserving compaction."""
    kept = _slots(events, ranking, events.max_keep)
    _launch(events, ranking, kept, kept, kept, ORDER=True)
    return kept


def hole_moves(events: Events, ranking: Ranking) -> Moves:
    """compaction.plan(order=False) without moves onto itself: int32 [R, L, H, max_evicted], -1 behind the last."""
    src, dst = _slots(events, ranking, events.max_evicted), _slots(events, ranking, events.max_evicted)
    _launch(events, ranking, src, src, dst, ORDER=False)
    return Moves(src, dst)


def _shape(events: Events, ranking: Ranking) -> tuple[int, int, int]:
    if isinstance(ranking, Draws):
        return len(events.slots), len(ranking.layers), len(ranking.heads)
    return len(events.slots), ranking.shape[1], ranking.shape[2]


def _slots(events: Events, ranking: Ranking, length: int) -> torch.Tensor:
    return torch.empty((*_shape(events, ranking), length), dtype=torch.int32, device=events.slots.device)


def _launch(
    events: Events, ranking: Ranking, kept: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, ORDER: bool
) -> None:
    requests, layers, heads = _shape(events, ranking)
    unused = events.slots
    if isinstance(ranking, Draws):
        scores, drawn = unused, (ranking.seeds, ranking.events, ranking.layers, ranking.heads)
        shared, run, n_scores = ranking.shared, ranking.run, 0
    else:
        scores, drawn, shared, run = ranking.contiguous(), (unused,) * 4, False, 1
        n_scores = ranking.shape[3]
    tile = triton.next_power_of_2(events.max_slots)
    launch(
        _select, (requests * layers * heads,), kept, src, dst, scores, *drawn,
        events.slots, events.prot, events.recent, events.keep,
        layers, heads, kept.shape[3], dst.shape[3], n_scores,
        SCORED=not isinstance(ranking, Draws), ORDER=ORDER, SHARED=shared, RUN=run, TILE=tile,
        num_warps=min(max(tile // 512, 4), 16),
    )  # fmt: skip


def kept_slots_reference(events: Events, ranking: Ranking) -> torch.Tensor:
    """The twin of kept_slots: policies.select.select, request by request."""
    out = _slots(events, ranking, events.max_keep).fill_(-1)
    for request, kept, _ in _selected(events, ranking):
        out[request, ..., : kept.shape[2]] = kept
    return out


def hole_moves_reference(events: Events, ranking: Ranking) -> Moves:
    """The twin of hole_moves: policies.compaction.plan, request by request."""
    src = _slots(events, ranking, events.max_evicted).fill_(-1)
    dst = src.clone()
    for request, kept, slots in _selected(events, ranking):
        moves = plan(kept, slots, order=False)
        for layer, head in ((layer, head) for layer in range(kept.shape[0]) for head in range(kept.shape[1])):
            real = moves.src[layer, head] != moves.dst[layer, head]
            count = int(real.sum())
            src[request, layer, head, :count] = moves.src[layer, head][real]
            dst[request, layer, head, :count] = moves.dst[layer, head][real]
    return Moves(src, dst)


@dataclass(frozen=True)
class _Given(Scorer):
    """Scores that are already there."""

    scores: torch.Tensor

    def score(self, view: CacheView) -> torch.Tensor:
        return self.scores


def _selected(events: Events, ranking: Ranking) -> Iterator[tuple[int, torch.Tensor, int]]:
    """(request, kept [L, H, K'], slots) of every event."""
    requests, layers, heads = _shape(events, ranking)
    if isinstance(ranking, Draws):
        word = torch.full_like(ranking.heads, SHARED_HEAD) if ranking.shared else ranking.heads
        seeds, numbers = (words.repeat_interleave(layers) for words in (ranking.seeds, ranking.events))
        rows = draw_reference(seeds, numbers, ranking.layers.repeat(requests), word, events.max_slots, ranking.run)
        scores = rows.unflatten(0, (requests, layers))
    else:
        scores = ranking
    for request in range(requests):
        slots, prot, recent, keep = (
            int(numbers[request]) for numbers in (events.slots, events.prot, events.recent, events.keep)
        )
        view = CacheView(
            shape=(layers, heads, slots), prot=prot, recent=recent, n_select=keep - prot - recent, t=slots,
            layers=tuple(range(layers)), heads=tuple(range(heads)), draw=Draw(0, 0, (), ()),
        )  # fmt: skip
        yield request, select(_Given(scores[request, ..., :slots]), view), slots


def at_real_size() -> None:
    """The launches to compile ahead of time (infra/aot.py)."""
    seeds = meta(torch.int64, 32)
    draws = Draws(seeds, seeds, meta(torch.int64, 36), meta(torch.int64, 8))
    for keep in (1024, 2048, 4096):
        events = Events.at_real_size(keep)
        hole_moves(events, draws)
        kept_slots(events, meta(torch.float32, 32, 36, 8, events.max_slots))
