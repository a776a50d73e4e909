"""Draws and selections equal those of the policies package, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policies import draws
from policies.compaction import Moves
from policies.draws import SHARED_HEAD, Draw
from policies.kernels.paged import Events
from policies.kernels.philox import draw, draw_reference
from policies.kernels.select import Draws, hole_moves, hole_moves_reference, kept_slots, kept_slots_reference
from policies.kernels.tests.cases import events, rng

SEEDS = [0, 2**64 - 1, 0x9E3779B97F4A7C15]
EVENTS = [0, 7, 2**32 - 1]
LAYERS, HEADS = (0, 35), (1, 7, 300)


def bits(seeds: list[int]) -> torch.Tensor:
    return torch.tensor(np.array(seeds, np.uint64).view(np.int64))


@pytest.mark.parametrize("slots", [1, 37, 1025])
def test_draws_are_those_of_the_policies_package(slots: int) -> None:
    """Of several events at once, as an engine folds them into one view."""
    layers, fold = LAYERS * len(SEEDS), len(LAYERS)
    seeds, numbers = (np.repeat(np.array(words, np.uint64), fold) for words in (SEEDS, EVENTS))
    one = Draw(seeds[:, None, None], numbers[:, None, None], layers, HEADS)
    rows = (torch.tensor(seeds.view(np.int64)), torch.tensor(numbers.view(np.int64)), torch.tensor(layers))
    for ours in (draw, draw_reference):
        heads, shared = torch.tensor(HEADS), torch.tensor([SHARED_HEAD])
        assert torch.equal(ours(*rows, heads, slots).cpu(), one.keys(slots))
        assert torch.equal(ours(*rows, heads, slots, uniform=True).cpu(), one.uniform(slots))
        assert torch.equal(ours(*rows, shared, slots).cpu(), one.shared_keys(slots))
        assert torch.equal(ours(*rows, heads, slots, run=5).cpu(), one.block_keys(slots, 5))


def test_a_draw_launches_where_its_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the interpreter there is no other device: numpy is switched off instead."""
    numpy = Draw(2**63 + 1, 4, LAYERS, HEADS)
    device = Draw(2**63 + 1, 4, LAYERS, HEADS, device=torch.get_default_device())
    numbers = [numpy.keys(9), numpy.shared_keys(9), numpy.block_keys(9, 4), numpy.uniform(9)]
    monkeypatch.setattr(draws, "_CPU", torch.device("meta"))
    monkeypatch.delattr(Draw, "_words")
    launched = [device.keys(9), device.shared_keys(9), device.block_keys(9, 4), device.uniform(9)]
    assert all(torch.equal(ours.cpu(), theirs) for ours, theirs in zip(launched, numbers, strict=True))


# (slots, prot, recent, keep): ordinary, no protection, nothing selectable, everything kept but one, keep more than half
FRAMES = [(40, 5, 8, 24), (61, 0, 0, 60), (33, 3, 17, 20), (2, 0, 1, 1), (50, 50 - 16, 0, 34)]


def batch_of(frames: list[tuple[int, int, int, int]]) -> Events:
    return events(frames, torch.zeros(len(frames), 1, dtype=torch.int32), list(range(len(frames))))


def equal(ours: Moves, theirs: Moves) -> bool:
    return torch.equal(ours.src, theirs.src) and torch.equal(ours.dst, theirs.dst)


@pytest.mark.parametrize(("shared", "run"), [(False, 1), (True, 1), (False, 6)])
def test_random_selections(shared: bool, run: int) -> None:
    batch = batch_of(FRAMES)
    seeds, numbers = bits([11, 12, 2**63 + 5, 14, 15]), torch.arange(5)
    ranking = Draws(seeds, numbers, torch.tensor(LAYERS[1:]), torch.tensor(HEADS[:2]), shared, run)
    assert equal(hole_moves(batch, ranking), hole_moves_reference(batch, ranking))
    assert torch.equal(kept_slots(batch, ranking), kept_slots_reference(batch, ranking))


@pytest.mark.parametrize("kind", ["continuous", "ties", "nan"])
def test_scored_selections(kind: str) -> None:
    batch, generator = batch_of(FRAMES), rng(3)
    scores = torch.randn(len(FRAMES), 1, 2, batch.max_slots, generator=generator)
    if kind == "ties":
        scores = scores.round() * torch.tensor([0.0, -1.0, 1.0, 1.0]).repeat(16)  # -0 equals 0
    if kind == "nan":
        scores[scores > 0.5] = float("nan")
        scores[scores < -1] = -float("inf")
        scores[0, 0, 0, 20:30] = float("inf")
    assert equal(hole_moves(batch, scores), hole_moves_reference(batch, scores))
    assert torch.equal(kept_slots(batch, scores), kept_slots_reference(batch, scores))


@pytest.mark.parametrize("keep", [1024, 2048, 4096])
def test_selections_at_real_size(keep: int) -> None:
    batch = batch_of([(keep + 64, 300, 64, keep)])
    ranking = Draws(bits([5]), torch.tensor([9]), torch.tensor([3]), torch.tensor([6]))
    assert equal(hole_moves(batch, ranking), hole_moves_reference(batch, ranking))
    scores = torch.randn(1, 1, 1, batch.max_slots, generator=rng(keep))
    assert torch.equal(kept_slots(batch, scores), kept_slots_reference(batch, scores))
