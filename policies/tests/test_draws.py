"""Keyed draws: published vectors, independence of what is drawn together, and the in-place rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.draws import INPLACE_SLOT, SHARED_HEAD, Draw, inplace_victims, philox

ONES = 0xFFFFFFFF
# Known answers of Random123 (Salmon et al., SC 2011), philox4x32-10: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
words = st.integers(0, ONES)
seeds = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    seed = key[0] | key[1] << 32
    assert tuple(philox(seed, *counter).tolist()) == expected


def one(seed: int, counter: tuple[int, ...]) -> tuple[int, ...]:
    """Philox-4x32-10 of one counter in plain integers, from the paper's definition."""
    a, b, c, d = counter
    k0, k1 = seed & ONES, seed >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ k0, q & ONES, (p >> 32) ^ d ^ k1, p & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return a, b, c, d


@settings(max_examples=60)
@given(seeds, words, words, words, words)
def test_a_single_counter(seed: int, a: int, b: int, c: int, d: int) -> None:
    assert tuple(philox(seed, a, b, c, d).tolist()) == one(seed, (a, b, c, d))


@settings(max_examples=25)
@given(st.lists(seeds, min_size=1, max_size=3), st.lists(words, min_size=1, max_size=3), words)
def test_seeds_and_counters_broadcast(many: list[int], first: list[int], last: int) -> None:
    drawn = philox(np.array(many, np.uint64)[:, None, None], np.array(first)[:, None], 7, np.arange(2), last)
    assert drawn.shape == (len(many), len(first), 2, 4)
    assert drawn.dtype == np.uint32
    for i, seed in enumerate(many):
        for j, word in enumerate(first):
            for k in range(2):
                assert tuple(drawn[i, j, k].tolist()) == one(seed, (word, 7, k, last))


@settings(max_examples=25)
@given(seeds, st.integers(0, 10**6))
def test_draws_are_the_words_of_their_counters(seed: int, event: int) -> None:
    layers, heads = (3, 8), (1, 5, 6)
    draw = Draw(seed, event, layers, heads)
    keys, shared, uniform = draw.keys(4), draw.shared_keys(4), draw.uniform(4)
    assert (keys.shape, shared.shape, uniform.shape) == ((2, 3, 4), (2, 1, 4), (2, 3, 4))
    assert (keys.dtype, shared.dtype, uniform.dtype) == (torch.int64, torch.int64, torch.float32)
    for i, layer in enumerate(layers):
        for s in range(4):
            first, second, *_ = one(seed, (event, layer, SHARED_HEAD, s))
            assert int(shared[i, 0, s]) == first << 31 | second >> 1
            for j, head in enumerate(heads):
                first, second, *_ = one(seed, (event, layer, head, s))
                assert int(keys[i, j, s]) == first << 31 | second >> 1
                assert float(uniform[i, j, s]) == (first >> 8) / 2**24
                assert 0 <= uniform[i, j, s] < 1


def test_a_draw_does_not_depend_on_what_is_drawn_beside_it() -> None:
    whole = Draw(11, 4, (0, 1, 2), (0, 1, 2, 3)).keys(40)
    assert torch.equal(Draw(11, 4, (1,), (2, 3)).keys(17), whole[1:2, 2:4, :17])
    assert whole.unique().numel() == whole.numel()
    assert not torch.equal(whole, Draw(11, 5, (0, 1, 2), (0, 1, 2, 3)).keys(40))
    assert not torch.equal(whole, Draw(11 + 2**32, 4, (0, 1, 2), (0, 1, 2, 3)).keys(40))


@pytest.mark.parametrize(("slots", "block"), [(40, 16), (32, 16), (5, 8), (6, 1)])
def test_a_run_has_the_key_of_its_first_slot(slots: int, block: int) -> None:
    draw = Draw(5, 0, (0, 2), (1, 3))
    keys = draw.keys(slots)
    starts = torch.arange(slots) // block * block
    assert torch.equal(draw.block_keys(slots, block), keys[..., starts])


geometry = st.tuples(st.integers(1, 20), st.integers(0, 40), st.integers(0, 30), st.integers(0, 60))


def victims(seed: int, n: int, keep: int, prot: int, start: int, r: int) -> np.ndarray:
    return inplace_victims(
        np.array([seed], np.uint64),
        np.arange(2),
        np.arange(3),
        np.array([n]),
        np.array([keep]),
        np.array([prot]),
        np.array([start]),
        r,
    )[0]


@settings(max_examples=60, deadline=None)
@given(geometry, seeds)
def test_in_place_spares_the_protected_and_the_newest(shape: tuple[int, int, int, int], seed: int) -> None:
    """Token n overwrites; afterwards the protected slots and the newest r tokens are all there (contracts.md 1)."""
    r, spare, prot, beyond = shape
    keep = prot + r + spare
    admitted = keep + beyond - 30
    start = keep if admitted <= keep else admitted + 1
    older = np.arange(keep - r)
    held = np.concatenate((older, np.arange(start - r, start)))
    held = np.broadcast_to(held, (2, 3, keep)).copy()
    for n in range(start, start + 3 * r + 2):
        np.put_along_axis(held, victims(seed, n, keep, prot, start, r)[..., None], n, axis=-1)
        assert (held[..., :prot] == np.arange(prot)).all()
        newest = np.sort(held, axis=-1)[..., -r:]
        assert (newest == np.arange(n - r + 1, n + 1)).all()


def test_in_place_reaches_every_slot_of_its_class_and_no_other() -> None:
    r, prot, keep, start = 4, 3, 20, 25
    for n in range(start, start + r):
        c = (n - start + keep - prot) % r
        seen = {int(slot) for seed in range(60) for slot in victims(seed, n, keep, prot, start, r).ravel()}
        assert seen == set(range(prot + c, keep, r))


def test_in_place_is_the_rule_of_the_contract_for_a_mixed_batch() -> None:
    seeds_ = np.array([2**63 + 5, 17, 0], np.uint64)
    n, keep, prot, start = (
        np.array([300, 70, 41]),
        np.array([264, 64, 40]),
        np.array([100, 4, 0]),
        np.array([264, 64, 41]),
    )
    layers, heads = np.array([2, 9]), np.array([0, 7])
    got = inplace_victims(seeds_, layers, heads, n, keep, prot, start, 16)
    assert got.dtype == np.int64
    for b in range(3):
        c = int(n[b] - start[b] + keep[b] - prot[b]) % 16
        members = range(int(prot[b]) + c, int(keep[b]), 16)
        for i, layer in enumerate(layers):
            for j, head in enumerate(heads):
                word = one(int(seeds_[b]), (int(n[b]), int(layer), int(head), INPLACE_SLOT))[0]
                assert got[b, i, j] == members[word * len(members) >> 32]
