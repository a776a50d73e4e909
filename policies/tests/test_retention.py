"""Trace facts against plain Python, and the hash of kept sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.budget import survival
from policies.retention import (
    AGE_BINS,
    age_histogram,
    kept_crc,
    prompt_share,
    union_alive,
    victim_crc,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 70), st.integers(0, 2**40)), max_size=40))
def test_an_age_lies_in_the_bin_of_its_bit_length(ages: list[int]) -> None:
    counts = [0] * AGE_BINS
    for age in ages:
        counts[min(age.bit_length(), AGE_BINS - 1)] += 1
    assert age_histogram(torch.tensor(ages, dtype=torch.int64)) == tuple(counts)


def test_shares_and_union_by_hand() -> None:
    positions = torch.tensor([[[0, 1, 2, 9], [0, 7, 8, 9]], [[3, 7, 8, 9], [6, 7, 8, 9]]])
    assert prompt_share(positions, 4) == (0.0, 5 / 16)
    assert union_alive(positions) == 8


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 2**31), st.integers(0, 200))
def test_the_hash_is_of_sets_and_of_nothing_else(order: list[int], event: int, first: int) -> None:
    sets = torch.arange(first, first + 48).view(2, 2, 12)
    crc = kept_crc(event, (0, 3), (1, 2), sets)
    assert 0 <= crc < 2**64
    assert crc == kept_crc(event, (0, 3), (1, 2), sets[..., order])
    assert crc != kept_crc(event + 1, (0, 3), (1, 2), sets)
    assert crc != kept_crc(event, (0, 3), (2, 1), sets)
    assert crc != kept_crc(event, (3, 0), (1, 2), sets)
    assert crc != kept_crc(event, (0, 3), (1, 2), sets.flip(1))
    other = sets.clone()
    other[1, 1, 5] = first + 48
    assert crc != kept_crc(event, (0, 3), (1, 2), other)


def test_ranks_that_split_layers_or_heads_merge_by_xor() -> None:
    sets = torch.arange(4 * 4 * 9).view(4, 4, 9)
    whole = kept_crc(7, range(4), range(4), sets)
    by_head = [kept_crc(7, range(4), (2 * rank, 2 * rank + 1), sets[:, 2 * rank : 2 * rank + 2]) for rank in range(2)]
    by_layer = [kept_crc(7, (2 * rank, 2 * rank + 1), range(4), sets[2 * rank : 2 * rank + 2]) for rank in range(2)]
    assert by_head[0] ^ by_head[1] == by_layer[0] ^ by_layer[1] == whole


def test_hashes_of_small_sets_do_not_collide() -> None:
    layers, heads = range(8), range(8)
    seen = {
        int(victim_crc(n, (layer,), (head,), np.array([[position]])))
        for n in range(8)
        for layer in layers
        for head in heads
        for position in range(16)
    }
    assert len(seen) == 8 * 8 * 8 * 16


def test_victims_of_a_batch_hash_like_single_ones() -> None:
    overwritten = torch.arange(3 * 2 * 4).view(3, 2, 4)
    n = torch.tensor([40, 41, 90])
    batch = victim_crc(n, (0, 1), range(4), overwritten)
    assert batch.shape == (3,)
    for b in range(3):
        assert int(batch[b]) == kept_crc(int(n[b]), (0, 1), range(4), overwritten[b, :, :, None])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((264, 100, 16), 148 / 164),
        ((264, 100, 0, 16), 164 / 180),
        ((1024, 0, 64), 0.9375),
        ((100, 90, 16), 0.0),
    ],
)
def test_survival(arguments: tuple[int, ...], expected: float) -> None:
    assert survival(*arguments) == expected
