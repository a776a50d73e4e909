"""Compaction moves exactly the rows it should, bit for bit, whatever the layout and the order of the blocks."""

from __future__ import annotations

import pytest
import torch

from policies.kernels.compact import fill_holes, fill_holes_reference, shift_down, shift_down_reference
from policies.kernels.kept import Ledger, settle, settle_reference
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


@pytest.mark.parametrize("layers", [1, 3])
def test_kept_sets_are_hashed_and_coming_slots_noted(layers: int) -> None:
    """A set longer than a tile, one event that does not count, one at the end of the table."""
    frames = [(330, 6, 8, 300), (41, 0, 3, 40), (96, 40, 11, 90)]
    batch = events(frames, torch.zeros(3, 1, dtype=torch.int32), [4, 0, 2])
    positions = torch.randint(99999, (6, layers, 2, 310), generator=rng(layers), dtype=torch.int32)
    counted, heads = torch.randint(-9, 9, (6, 4), generator=rng(3)), torch.arange(2) + 3
    ours, theirs = (
        Ledger(positions.clone(), counted.clone(), positions, torch.arange(layers) + 7, heads) for _ in range(2)
    )
    columns = (0, 7, 31), (330, 400, 9999), (30, 0, 16), (1, 0, 1), (0, 0, 1)
    facts = [torch.tensor(column, dtype=torch.int32) for column in columns]
    settle(ours, batch, *facts)
    settle_reference(theirs, batch, *facts)
    assert torch.equal(ours.positions, theirs.positions)
    assert torch.equal(ours.counted, theirs.counted)
    assert (ours.counted[:, 0] != counted[:, 0]).tolist() == [True, False, True, False, True, False]
    assert (ours.counted[:, 1] - counted[:, 1]).tolist() == [0, 0, 1, 0, 1, 0]
    assert [int(ours.counted[cell]) for cell in ((2, 2), (4, 3), (0, 3))] == [0, 0, 0]
    assert ours.positions[2, 0, 0, 90:106].tolist() == list(range(9999, 10015))
    assert ours.positions[4, 0, 0, 300:].tolist() == list(range(330, 340))
    assert torch.equal(ours.positions[0], positions[0])
