"""Scores against the sentences of the specification, written out per slot in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from policies import registry
from policies.base import Scorer, Windowed
from policies.draws import Draw
from policies.methods.vase import VaSE
from policies.scoring import redundancy, value_range
from policies.scoring.window import ranked_twice
from policies.select import select
from policies.view import CacheView

L, H, G, S, D, W, RECENT = 2, 2, 3, 37, 8, 5, 6
N = S - RECENT


def view(seed: int = 0, slots: int = S, dtype: torch.dtype = torch.float32, **parts: Any) -> CacheView:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    layers, heads = tuple(range(L)), tuple(range(H))
    facts: dict[str, Any] = {"prot": 4, "recent": RECENT, "n_select": 12, **parts}
    return CacheView(
        shape=(L, H, slots),
        t=slots + 9,
        layers=layers,
        heads=heads,
        draw=Draw(seed, 0, layers, heads),
        keys=2 * normal(L, H, slots, D),
        values=normal(L, H, slots, D),
        queries=2 * normal(L, H * G, W, D),
        **facts,
    )


def build(name: str, **params: Any) -> Windowed:
    policy = registry.build(name, params)
    assert isinstance(policy, Windowed)
    return policy


def softmax(row: list[float]) -> list[float]:
    exponentials = [math.exp(value - max(row)) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def neighbours(row: list[float], slot: int, kernel: int) -> list[float]:
    return [row[other] for other in range(slot - kernel // 2, slot + kernel // 2 + 1) if 0 <= other < len(row)]


def logits(event: CacheView, layer: int, head: int, query: int) -> list[float]:
    """q·k / sqrt(D) of one query over the candidates."""
    q = event.need("queries")[layer, head, query].double()
    return [float(q @ key) / math.sqrt(D) for key in event.need("keys")[layer, head // G, :N].double()]


def snapkv(event: CacheView, layer: int, head: int, kernel: int) -> list[float]:
    total = [0.0] * N
    for member in range(head * G, head * G + G):
        rows = [softmax(logits(event, layer, member, query)) for query in range(W)]
        mean = [sum(row[slot] for row in rows) / W for slot in range(N)]
        for slot in range(N):
            total[slot] += sum(neighbours(mean, slot, kernel)) / kernel / G
    return total


def snapkv_rkv(event: CacheView, layer: int, head: int, kernel: int) -> list[float]:
    rows = []
    for query in range(W):
        members = [logits(event, layer, member, query) for member in range(head * G, head * G + G)]
        rows.append(softmax([max(member[slot] for member in members) for slot in range(N)]))
    mean = [sum(row[slot] for row in rows) / W for slot in range(N)]
    return [max(neighbours(mean, slot, kernel)) for slot in range(N)]


def cosines(keys: torch.Tensor) -> list[list[float]]:
    unit = [key / (key.norm() + 1e-8) for key in keys.double()]
    return [[0.0 if i == j else float(a @ b) for j, b in enumerate(unit)] for i, a in enumerate(unit)]


def rkv(event: CacheView, layer: int, head: int) -> list[float]:
    table = cosines(event.need("keys")[layer, head, :N])
    alike = softmax([sum(row[slot] for row in table) / N for slot in range(N)])
    return [0.5 * a - 0.5 * b for a, b in zip(snapkv(event, layer, head, 5), alike, strict=True)]


def rkv_official(event: CacheView, layer: int, head: int) -> list[float]:
    table = cosines(event.need("keys")[layer, head])
    for row in table:
        similar = [slot for slot, cosine in enumerate(row) if cosine > 0.5]
        row[similar[-1] if similar else 0] = 0.0
    alike = softmax([sum(row[slot] for row in table) / S for slot in range(S)])[:N]
    return [0.1 * a - 0.9 * b for a, b in zip(snapkv_rkv(event, layer, head, 7), alike, strict=True)]


WRITTEN_OUT = {
    "snapkv": lambda event, layer, head: snapkv(event, layer, head, 5),
    "snapkv_rkv": lambda event, layer, head: snapkv_rkv(event, layer, head, 7),
    "rkv": rkv,
    "rkv_official": rkv_official,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_score_is_its_formula(name: str, dtype: torch.dtype) -> None:
    """Keys and queries are read exactly, also from bf16: the scores are fp32 ones."""
    event = view(seed=3, dtype=dtype)
    found = build(name, window=W).score(event)
    assert found.dtype == torch.float32
    assert found.shape == (L, H, N)
    expected = [[WRITTEN_OUT[name](event, layer, head) for head in range(H)] for layer in range(L)]
    torch.testing.assert_close(found.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("slots", [1, 255, 256, 257, 600])
@pytest.mark.parametrize("threshold", [0.5, -0.2])
def test_redundancy_in_stripes_is_the_whole_table(slots: int, threshold: float) -> None:
    keys = torch.randn(2, slots, 4, generator=torch.Generator().manual_seed(slots), dtype=torch.float32)
    unit = redundancy.directions(keys)
    table = (unit.double() @ unit.double().transpose(1, 2)).masked_fill(torch.eye(slots, dtype=torch.bool), 0.0)
    torch.testing.assert_close(redundancy.mean_cosine(unit).double(), table.mean(1), rtol=0, atol=1e-6)
    lost = torch.zeros(2, slots, dtype=torch.float64)
    for head in range(2):
        for row in range(slots):
            similar = (table[head, row] > threshold).nonzero()[:, 0]
            slot = int(similar[-1]) if len(similar) else 0
            lost[head, slot] += table[head, row, slot] / slots
    torch.testing.assert_close(redundancy.forgiven(unit, threshold, "last").double(), lost, rtol=0, atol=1e-6)
    first = redundancy.forgiven(unit, threshold, "first").double()
    torch.testing.assert_close(first[:, 0], table[:, :, 0].mean(1), rtol=0, atol=1e-6)
    assert (first[:, 1:] == 0).all()


def test_ties_by_the_raw_score_keep_the_peak() -> None:
    policy = build("snapkv_rkv", window=W, ties="raw")
    event = view(seed=1, prot=0, n_select=1)
    raw = build("snapkv_rkv", window=W, kernel=1).score(event)
    kept = select(policy, event)[..., 0]
    assert torch.equal(kept, raw.argmax(-1))
    plateau = torch.tensor([[[2.0, 2.0, 2.0, 1.0]]])
    assert ranked_twice(plateau, torch.tensor([[[0.0, 2.0, 0.0, 9.0]]])).tolist() == [[[3, 4, 2, 1]]]


@pytest.mark.parametrize(
    ("name", "params", "prot", "n_select", "keep", "expected"),
    [
        ("vase", {}, 4, 90, 104, 26 - 4),
        ("vase", {}, 0, 90, 100, 25),
        ("vase", {}, 2, 90, 100, 25 - 2),
        ("vase", {"n_large": 8}, 50, 30, 90, 4),
        ("vase", {"n_large": 200}, 50, 30, 90, 30),
        ("vase", {"n_large": 2}, 50, 30, 90, 0),
        ("vase_paper", {"n_large": 8}, 50, 30, 90, 8),
        ("vase_paper", {"n_large": 200}, 50, 30, 90, 30),
        ("vase_paper", {"n_large": 8}, 4, 30, 90, 4),
        ("vase_paper", {"n_large": 8}, 0, 30, 90, 8),
    ],
)
def test_how_many_stay_for_their_width(
    name: str, params: dict[str, int], prot: int, n_select: int, keep: int, expected: int
) -> None:
    policy = build(name, **params)
    assert isinstance(policy, VaSE)
    assert policy.widest(keep, prot, n_select) == expected


def test_the_widest_stay_whatever_the_draw() -> None:
    event = view(seed=5, n_select=10)
    policy = build("vase", window=W, n_large=9)
    kept = select(policy, event)
    width = value_range.value_range(event.need("values"))[..., 4:N]
    widest = width.topk(5, dim=-1).indices + 4
    assert all(set(widest[layer, head].tolist()) <= set(kept[layer, head].tolist()) for layer, head in np.ndindex(L, H))


def test_the_last_bits_of_equal_widths_decide_nothing() -> None:
    """Slots 0, 3 and 4 hold one token's value, made by different matrix products; two of them stay."""
    wide = torch.tensor(2.7).nextafter(torch.tensor(torch.inf))
    width = torch.stack((torch.tensor(2.7), torch.tensor(1.0), torch.tensor(0.5), wide, wide))[None, None]
    draw = Draw(1, 0, (0,), (0,))
    event = CacheView(shape=(1, 1, 5), prot=0, recent=0, n_select=2, t=5, layers=(0,), heads=(0,), draw=draw)
    policy = build("vase", n_large=2, n_sink=0)
    assert isinstance(policy, VaSE)
    scores = value_range.sampled(policy, event, torch.full((1, 1, 5), 0.2), width)
    assert scores.isposinf().nonzero()[:, 2].tolist() == [0, 3]


def test_sinks_are_widest_where_nothing_is_protected() -> None:
    event = view(seed=5, prot=0, n_select=10)
    assert (select(build("vase", window=W, n_large=6), event)[..., :4] == torch.arange(4)).all()


def test_the_draw_is_without_replacement_and_proportional() -> None:
    """First and second of two drawn: P(i) = a_i, P(j | i) = a_j / (1 - a_i); exact binomial bounds, error 1e-9 each."""
    attention = torch.tensor([0.5, 0.3, 0.15, 0.05])
    trials = 20_000
    layers = tuple(range(trials))
    draw = Draw(9, 0, layers, (0,))
    event = CacheView(
        shape=(trials, 1, 4), prot=0, recent=0, n_select=2, t=4, layers=layers, heads=(0,), draw=draw
    )  # fmt: skip
    policy = build("vase", n_large=0, n_sink=0)
    assert isinstance(policy, VaSE)
    keys = value_range.sampled(policy, event, attention.expand(trials, 1, 4), torch.zeros(trials, 1, 4))
    order = keys[:, 0].argsort(descending=True)
    for first in range(4):
        for second in range(4):
            if first == second:
                continue
            chance = float(attention[first] * attention[second] / (1 - attention[first]))
            count = int(((order[:, 0] == first) & (order[:, 1] == second)).sum())
            assert binom.ppf(5e-10, trials, chance) <= count <= binom.isf(5e-10, trials, chance), (first, second)


def test_h2o_needs_what_it_counts() -> None:
    scorer = registry.build("h2o", {"prefill": False})
    assert isinstance(scorer, Scorer)
    assert (scorer.needs.attention, registry.build("h2o", {}).needs.attention) == ("step", "prefill")
