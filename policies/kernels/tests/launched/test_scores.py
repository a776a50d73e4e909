"""Scores over the paged cache against the scorers' own functions, on rows in random blocks, some not finite."""

from __future__ import annotations

import pytest
import torch

from policies.base import Windowed
from policies.kernels.attention_mass import add_decode_mass, add_decode_mass_reference
from policies.kernels.paged import PagedCache
from policies.kernels.redundancy import mean_cosine, mean_cosine_reference
from policies.kernels.tests.cases import REAL, SHAPES, Shape, name, paged, rng
from policies.kernels.triattention import head_scores, head_scores_reference
from policies.kernels.value_range import value_range, value_range_reference
from policies.kernels.window import window_attention, window_attention_reference
from policies.scoring.triattention import Weights
from policies.scoring.window import pooled

# NaN and inf are in the inputs; numpy warns of them where a device would not
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
ENDS = [70, 3, 64]
WIDTH = 75
GROUP = {1: 3, 2: 1, 3: 2, 8: 4}
"""Query heads of a KV head, by the number of KV heads."""


# fp32 sums of up to 128 products in another order: each differs from the exact sum by at most 128 · 2^-24 of the sum of
# magnitudes, which for the rows here is below 150, so that logits (divided by sqrt(D) > 2.8) differ by at most
# 2 · 128 · 2^-24 · 150 / 2.8 = 8e-4 in the worst case; random signs leave less than a tenth of that.
def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=8e-5, atol=2e-6, equal_nan=True)


def case(shape: Shape) -> tuple[PagedCache, torch.Tensor, torch.Tensor, torch.Generator]:
    """A cache in which one key is NaN, one inf, one value NaN and one inf; of REAL one request only."""
    generator = rng(shape.size + 1)
    lengths = ENDS[: 1 if shape == REAL else 3]
    cache, table = paged(shape, lengths, generator)
    block = table[0].long()
    for rows in (cache.keys[0], cache.values[0]):
        rows[block[9 // shape.block], 9 % shape.block, 0, 3] = float("nan")
        rows[block[60 // shape.block], 60 % shape.block, -1, 0] = -float("inf")
    return cache, table, torch.tensor(lengths, dtype=torch.int32), generator


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_value_ranges(shape: Shape) -> None:
    cache, table, ends, _ = case(shape)
    expected = value_range_reference(cache, table, ends, WIDTH)
    torch.testing.assert_close(value_range(cache, table, ends, WIDTH), expected, rtol=0, atol=0, equal_nan=True)
    assert expected[0].isnan().sum() == shape.layers * shape.heads * (WIDTH - ENDS[0]) + 1


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_mean_cosines(shape: Shape) -> None:
    cache, table, ends, _ = case(shape)
    expected = mean_cosine_reference(cache, table, ends, WIDTH)
    close(mean_cosine(cache, table, ends, WIDTH), expected)


@pytest.mark.parametrize("distances", [0, 1, 3])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.size % 2 == 0], ids=name)
def test_triattention_scores(shape: Shape, distances: int) -> None:
    cache, table, ends, generator = case(shape)
    bands, heads = shape.size // 2, shape.heads * GROUP[shape.heads]
    order = torch.randperm(shape.size, generator=generator)  # neither half nor interleaved: the index must be used
    weights = Weights(
        torch.empty(0), torch.rand(shape.layers, heads, bands, generator=generator), order[:bands], order[bands:]
    )
    queries = torch.randn(len(ends), distances, shape.layers, heads, shape.size, generator=generator)
    expected = head_scores_reference(cache, table, ends, queries, weights, WIDTH)
    ours = head_scores(cache, table, ends, queries, weights, WIDTH)
    # hypot of an inf and a NaN is inf, their squares' sum is NaN: either way the row has no finite score
    finite = expected.isfinite()
    assert torch.equal(ours.isfinite(), finite)
    close(ours[finite], expected[finite])


@pytest.mark.parametrize(("window", "reduce"), [(64, "mean"), (8, "max"), (5, "mean")])
@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_window_attention(shape: Shape, window: int, reduce: str) -> None:
    cache, table, ends, generator = case(shape)
    heads = shape.heads * GROUP[shape.heads]
    # the second request has fewer tokens than the window: the rest of its ring is poison
    rows, tokens = (torch.tensor(numbers, dtype=torch.int32)[: len(ends)] for numbers in ([2, 0, 3], [500, 3, 64]))
    rings = torch.randn(shape.layers, 4, window, heads, shape.size, generator=generator).to(shape.dtype)
    rings[:, 0, 3:] = float("nan")
    rings[0, 2, 1, 0] = float("nan")  # one query without a say
    arguments = (cache, table, ends, rings, rows, tokens, WIDTH, reduce)
    expected = window_attention_reference(*arguments)
    close(window_attention(*arguments), expected)
    assert expected.isnan().any()


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_pooling_all_of_the_width_pools_the_slots_of_each_request(reduce: str) -> None:
    """What stands behind a request's slots is absent for a pool, so requests of any length are pooled together."""
    cache, table, ends, generator = case(SHAPES[0])
    rings = torch.randn(SHAPES[0].layers, 3, 4, 6, SHAPES[0].size, generator=generator)
    rows = torch.arange(3, dtype=torch.int32)
    scores = window_attention_reference(cache, table, ends, rings, rows, torch.full_like(rows, 9), WIDTH, reduce)
    policy = Windowed(window=4, kernel=5, pool="avg" if reduce == "mean" else "max")
    together = pooled(scores.flatten(0, 1), policy).unflatten(0, scores.shape[:2])
    for request, end in enumerate(ends.tolist()):
        close(together[request, ..., :end], pooled(scores[request, ..., :end], policy))


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_decode_steps_add_their_attention(shape: Shape) -> None:
    """A padding token, a request that records nothing, and two that do, after two steps each."""
    generator = rng(shape.size)
    cache, table = paged(shape, [70, 3, 64], generator)
    heads = shape.heads * GROUP[shape.heads]
    token_rows, records, cached = (
        torch.tensor(numbers, dtype=torch.int32) for numbers in ([2, -1, 0, 1], [4, -1, 1], [70, 3, 64])
    )
    fused = heads + 2 * shape.heads
    mass = torch.full((5, shape.heads, WIDTH), float("nan"))
    mass[[1, 4]] = torch.rand(2, shape.heads, WIDTH, generator=generator)
    expected = mass.clone()
    for _ in range(2):
        query = torch.randn(4, fused, shape.size, generator=generator).to(shape.dtype)[:, :heads]
        arguments = (query, cache.keys[0], token_rows, table, records, cached, shape.size**-0.5)
        add_decode_mass(mass, *arguments)
        add_decode_mass_reference(expected, *arguments)
    close(mass, expected)
    assert mass[[0, 2, 3]].isnan().all()
