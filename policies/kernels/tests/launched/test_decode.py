"""What runs in every decode step: rows written to victims, queries recorded."""

from __future__ import annotations

import pytest
import torch

from policies.kernels.inplace import Replacing, write, write_reference
from policies.kernels.kept import Ledger
from policies.kernels.lengths import Places, rewrite, rewrite_reference
from policies.kernels.recorder import newest_queries, record, record_reference
from policies.kernels.tests.cases import REAL, SHAPES, Shape, clone, name, paged, rng, same

# (n, K', prot, n0): before the first replacement, the first, later ones; unequal classes; no protection
REQUESTS = [(59, 60, 3, 60), (60, 60, 3, 60), (500, 60, 3, 60), (81, 75, 0, 80), (4000, 77, 10, 77)]
INTERVAL = 16


@pytest.mark.parametrize("interval", [INTERVAL, 64])
@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_rows_go_to_their_victims(shape: Shape, interval: int) -> None:
    generator = rng(4)
    cache, table = paged(shape, [80] * len(REQUESTS), generator)
    n, keep, prot, start = (torch.tensor(column, dtype=torch.int32) for column in zip(*REQUESTS, strict=True))
    if interval == 64:
        keep, prot = keep + 5, torch.zeros_like(prot)  # K' - prot >= interval
        keep[:] = 80
    # token 0 is padding though its request replaces, token 5 belongs to a request that never does
    token_rows = torch.tensor([1, 3, 0, 2, 4, -1, 1], dtype=torch.int32)
    seeds = torch.tensor([1, -2, 3, 2**62, 5])
    table_rows = torch.tensor([3, 5, 1, 0, 4], dtype=torch.int32)
    batch = Replacing(token_rows, table, table_rows, seeds, n, keep, prot, start)
    free = int(table[0, 0]) * shape.block
    mapping = torch.tensor([-1, 5, free, 7, 9, 0, 3])
    fused = torch.randn(7, 3 * shape.heads, shape.size, generator=generator).to(shape.dtype)
    if shape == REAL:
        fused = torch.randn(7, 48, shape.size, generator=generator).to(shape.dtype)
    rows = (fused[:, -2 * shape.heads : -shape.heads], fused[:, -shape.heads :])
    expected, index = clone(cache), shape.layers - 1
    ours, theirs = (
        Ledger(
            torch.arange(100, dtype=torch.int32).expand(6, shape.layers, shape.heads, 100).contiguous(),
            torch.ones(6, 4, dtype=torch.int64), torch.full((6, shape.layers, shape.heads, 3), -7, dtype=torch.int32),
            torch.arange(shape.layers) + 11, torch.arange(shape.heads) + 3,
        )
        for _ in range(2)
    )  # fmt: skip
    write(rows, (cache.keys[0], cache.values[0]), mapping, batch, ours, index, interval)
    write_reference(rows, (expected.keys[0], expected.values[0]), mapping, batch, theirs, index, interval)
    assert same(cache, expected)
    assert torch.equal(ours.positions, theirs.positions)
    assert torch.equal(ours.counted, theirs.counted)
    assert torch.equal(ours.before, theirs.before)
    assert (ours.before[:, index, 0, 0] == -7).tolist() == [False, False, True, True, False, False]
    assert len(ours.counted[:, 0].unique()) == 5  # four requests replace, the others keep what they had
    assert ours.counted[:, 1].tolist() == [1 + (index == 0) * moved for moved in (1, 1, 0, 0, 1, 1)]


@pytest.mark.parametrize("block", [5, 16])
def test_slots_and_lengths_are_rewritten(block: int) -> None:
    """A prefill of three tokens, rows that decode, one whose slot is vLLM's, and padding."""
    generator = rng(block)
    table = torch.randperm(40, generator=generator).view(5, 8).int()
    columns = [(9, 30, 31, 40, 0), (0, 3, 4, 5, 0), (-1, 29, -1, 39, -1)]
    places = Places(*(torch.tensor(column, dtype=torch.int32) for column in columns))
    mapping = torch.arange(100, 107)
    expected, lengths = mapping.clone(), torch.full((2, 5), -77, dtype=torch.int32)
    rewrite(mapping, lengths[0], table, places, block)
    rewrite_reference(expected, lengths[1], table, places, block)
    assert torch.equal(mapping, expected)
    assert lengths.tolist() == [list(columns[0])] * 2
    assert (mapping != torch.arange(100, 107)).tolist() == [False] * 3 + [True, False, True, False]


@pytest.mark.parametrize(("window", "heads", "size"), [(3, 2, 24), (8, 32, 128), (64, 32, 128)])
def test_the_newest_queries_are_recorded(window: int, heads: int, size: int) -> None:
    """Two decodes, a long and a short prefill chunk, padding, and a request that records nothing."""
    generator = rng(window)
    # (ring row, first position, tokens)
    chunks = [(2, 40, 1), (0, 7, 1), (4, 10, window + 5), (1, 0, 2), (-1, 3, 2)]
    ring_rows = torch.cat([torch.full((count,), row) for row, _, count in chunks] + [torch.tensor([3, 0])]).int()
    n = torch.cat([torch.arange(first, first + count) for _, first, count in chunks] + [torch.tensor([0, 0])])
    mapping = torch.arange(len(n))
    mapping[-2:] = -1
    newest = torch.zeros(5, dtype=torch.int64)
    for row, first, count in chunks[:-1]:
        newest[row] = first + count - 1
    queries = torch.randn(len(n), heads + 16, size, generator=generator).bfloat16()[:, :heads]
    ring = torch.full((5, window, heads, size), float("nan"), dtype=torch.bfloat16)
    expected = ring.clone()
    record(queries, ring, mapping, ring_rows, n, newest)
    record_reference(queries, expected, mapping, ring_rows, n, newest)
    assert torch.equal(ring.view(torch.int16), expected.view(torch.int16))
    start = sum(count for _, _, count in chunks[:2])
    chunk = queries[start : start + window + 5]
    assert torch.equal(newest_queries(ring[4], 10 + window + 5), chunk[-window:].transpose(0, 1))
