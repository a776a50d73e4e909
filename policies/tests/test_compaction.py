"""The slot map: applied to any cache it leaves exactly the kept rows."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.compaction import plan


@st.composite
def kept_sets(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    """Ascending kept slots, int64 [L, H, K], and the cache's number of slots."""
    layers, heads, slots = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 14))
    keep = draw(st.integers(1, slots))
    rows = [sorted(draw(st.permutations(range(slots)))[:keep]) for _ in range(layers * heads)]
    return torch.tensor(rows).view(layers, heads, keep), slots


@settings(max_examples=150, deadline=None)
@given(kept_sets(), st.booleans(), st.sampled_from([(), (3,)]))
def test_applied_to_a_cache_it_leaves_exactly_the_kept_rows(
    case: tuple[torch.Tensor, int], order: bool, tail: tuple[int, ...]
) -> None:
    kept, slots = case
    layers, heads, keep = kept.shape
    cache = torch.arange(layers * heads * slots * (3 if tail else 1)).view(layers, heads, slots, *tail)
    before = cache.clone()
    plan(kept, slots, order).apply(cache)
    for layer in range(layers):
        for head in range(heads):
            now, was = cache[layer, head, :keep].tolist(), before[layer, head, kept[layer, head]].tolist()
            assert (now if order else sorted(now)) == was


@settings(max_examples=150, deadline=None)
@given(kept_sets())
def test_hole_filling_moves_few_rows_in_any_order(case: tuple[torch.Tensor, int]) -> None:
    kept, slots = case
    layers, heads, keep = kept.shape
    moves = plan(kept, slots, order=False)
    assert moves.src.shape == moves.dst.shape == (layers, heads, min(keep, slots - keep))
    for layer in range(layers):
        for head in range(heads):
            alive = set(kept[layer, head].tolist())
            pairs = list(zip(moves.src[layer, head].tolist(), moves.dst[layer, head].tolist(), strict=True))
            real = [(src, dst) for src, dst in pairs if src != dst]
            assert real == list(
                zip(
                    sorted(s for s in alive if s >= keep),
                    sorted(s for s in range(keep) if s not in alive),
                    strict=True,
                )
            )
            assert all(src in alive for src, dst in pairs if src == dst)
            assert len({dst for _, dst in pairs}) == len(pairs)
            assert not {src for src, _ in pairs} & {dst for _, dst in real}


@settings(max_examples=50, deadline=None)
@given(kept_sets())
def test_order_preserving_moves_may_go_upwards_in_place(case: tuple[torch.Tensor, int]) -> None:
    kept, slots = case
    moves = plan(kept, slots, order=True)
    for row, src, dst in zip(
        kept.flatten(0, 1).tolist(), moves.src.flatten(0, 1).tolist(), moves.dst.flatten(0, 1).tolist(), strict=True
    ):
        cache = list(range(slots))
        for a, b in zip(src, dst, strict=True):
            cache[b] = cache[a]
        assert cache[: len(row)] == row


def test_an_example_by_hand() -> None:
    kept = torch.tensor([[[0, 2, 5, 6], [0, 1, 2, 3]]])
    moves = plan(kept, 7, order=False)
    assert moves.src.tolist() == [[[2, 5, 6], [1, 2, 3]]]
    assert moves.dst.tolist() == [[[2, 1, 3], [1, 2, 3]]]
