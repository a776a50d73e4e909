"""Compaction moves exactly the rows it should, bit for bit, whatever the layout and the order of the blocks."""

from __future__ import annotations

import pytest
import torch

from policies.kernels.compact import fill_holes, fill_holes_reference, shift_down, shift_down_reference
from policies.kernels.select import hole_moves_reference, kept_slots_reference
from policies.kernels.tests.cases import SHAPES, Shape, clone, events, name, paged, rng, same

FRAMES = [(75, 6, 8, 40), (41, 0, 3, 40), (90, 40, 11, 51)]


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_rows_and_positions_move_alike(shape: Shape, ordered: bool) -> None:
    generator = rng(shape.size)
    cache, table = paged(shape, [frame[0] for frame in FRAMES], generator)
    batch = events(FRAMES, table, [4, 0, 2])
    scores = torch.randn(len(FRAMES), shape.layers, shape.heads, batch.max_slots, generator=generator)
    positions = torch.randint(9999, (6, shape.layers, shape.heads, 97), generator=generator, dtype=torch.int32)
    expected, expected_positions = clone(cache), positions.clone()
    if ordered:
        kept = kept_slots_reference(batch, scores)
        shift_down(cache, positions, batch, kept)
        shift_down_reference(expected, expected_positions, batch, kept)
    else:
        moves = hole_moves_reference(batch, scores)
        fill_holes(cache, positions, batch, moves)
        fill_holes_reference(expected, expected_positions, batch, moves)
    assert torch.equal(positions, expected_positions)
    assert same(cache, expected)


def test_what_is_kept_is_what_was_there() -> None:
    shape = SHAPES[0]
    cache, table = paged(shape, [30], rng(1))
    batch = events([(30, 4, 5, 17)], table, [0])
    scores = torch.randn(1, shape.layers, shape.heads, batch.max_slots, generator=rng(2))
    before = cache.gather("keys", table[0], 30)
    kept = kept_slots_reference(batch, scores)
    positions = torch.arange(30, dtype=torch.int32).expand(1, shape.layers, shape.heads, 30).contiguous()
    shift_down(cache, positions, batch, kept)
    index = kept[0, ..., :17].long()
    assert torch.equal(positions[0, ..., :17].long(), index)
    assert torch.equal(
        cache.gather("keys", table[0], 17), before.gather(2, index[..., None].expand(*index.shape, shape.size))
    )
