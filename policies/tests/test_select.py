"""Selection: sizes, protection, ties and the policies that ship."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from policies import registry
from policies.base import Scorer
from policies.budget import survival
from policies.draws import Draw
from policies.select import rank, select
from policies.view import CacheView


@dataclass(frozen=True)
class Given(Scorer):
    """Scores handed in by a test as the view's slot state."""

    name: ClassVar[str] = "given"

    def score(self, view: CacheView) -> torch.Tensor:
        return view.need("slot_state")


def view_of(shape: tuple[int, int, int], prot: int, recent: int, n_select: int, seed: int = 0) -> CacheView:
    layers, heads, slots = shape
    rows, columns = tuple(range(layers)), tuple(range(heads))
    return CacheView(
        shape=shape,
        prot=prot,
        recent=recent,
        n_select=n_select,
        t=slots,
        layers=rows,
        heads=columns,
        draw=Draw(seed, 0, rows, columns),
        positions=torch.arange(slots).expand(shape),
    )


def with_scores(scores: torch.Tensor, prot: int, recent: int, n_select: int, heads: int | None = None) -> CacheView:
    layers, given_heads, slots = scores.shape
    view = view_of((layers, heads or given_heads, slots), prot, recent, n_select)
    return replace(view, slot_state=scores)


def expected(scores: list[float], prot: int, recent: int, n_select: int) -> list[int]:
    """Kept slots of one head by the sentence of the specification, with Python's own stable sort."""
    slots = len(scores)
    candidates = range(prot, slots - recent)
    order = sorted(candidates, key=lambda s: (scores[s] != scores[s], -scores[s] if scores[s] == scores[s] else 0, s))
    return sorted([*range(prot), *order[:n_select], *range(slots - recent, slots)])


small = st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 5), st.integers(0, 4), st.integers(1, 12))
floats = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, float("inf"), float("-inf"), float("nan")])
integers = st.one_of(st.integers(-2, 2), st.sampled_from([2**63 - 1, -(2**63), 2**53, 2**53 + 1]))


@settings(max_examples=200, deadline=None)
@given(small, st.data())
def test_the_best_candidates_stay_and_ties_go_to_the_lower_slot(sizes: tuple[int, ...], data: st.DataObject) -> None:
    layers, heads, prot, recent, candidates = sizes
    slots = prot + recent + candidates
    kind, dtype = data.draw(
        st.sampled_from([(floats, torch.float32), (floats, torch.bfloat16), (integers, torch.int64)])
    )
    count = layers * heads * slots
    values = data.draw(st.lists(kind, min_size=count, max_size=count))
    n_select = data.draw(st.integers(0, candidates - 1))
    scores = torch.tensor(values, dtype=dtype).view(layers, heads, slots)
    kept = select(Given(), with_scores(scores, prot, recent, n_select))
    assert kept.shape == (layers, heads, prot + n_select + recent)
    assert kept.dtype == torch.int64
    for row, chosen in zip(scores.view(-1, slots).tolist(), kept.view(layers * heads, -1).tolist(), strict=True):
        assert chosen == expected(row, prot, recent, n_select)


@settings(max_examples=50, deadline=None)
@given(small, st.integers(0, 2**64 - 1), st.sampled_from(["random", "random_shared", "random_block"]))
def test_kept_slots_are_ascending_unique_and_protected(sizes: tuple[int, ...], seed: int, name: str) -> None:
    policy = registry.build(name, {})
    assert isinstance(policy, Scorer)
    layers, heads, prot, recent, candidates = sizes
    slots, n_select = prot + recent + candidates, candidates // 2
    kept = select(policy, view_of((layers, heads, slots), prot, recent, n_select, seed))
    assert kept.shape == (layers, heads, prot + n_select + recent)
    assert (kept.diff(dim=-1) > 0).all()
    assert (kept[..., :prot] == torch.arange(prot)).all()
    assert (kept[..., prot + n_select :] == torch.arange(slots - recent, slots)).all()


@pytest.mark.parametrize(("prot", "recent", "n_select"), [(2, 3, 5), (2, 3, 9), (8, 4, 0), (0, 0, 10)])
def test_nothing_is_scored_when_all_candidates_stay(prot: int, recent: int, n_select: int) -> None:
    view = view_of((2, 3, 10), prot, recent, n_select)
    assert torch.equal(select(Given(), view), torch.arange(10).expand(2, 3, 10))


def test_one_head_of_scores_serves_all() -> None:
    scores = torch.tensor([[[3.0, 1.0, 2.0, 5.0, 4.0]]])
    kept = select(Given(), with_scores(scores, 1, 1, 1, heads=3))
    assert kept.tolist() == [[[0, 3, 4]] * 3]


def test_scores_of_another_shape_are_refused() -> None:
    view = with_scores(torch.zeros(1, 2, 8), 0, 0, 3)
    with pytest.raises(
        ValueError, match=r"'given' gave scores of shape \[1, 2, 8\]; it must be \[layers 1, heads 4 or 1"
    ):
        select(Given(), replace(view, shape=(1, 4, 8)))


def test_a_missing_tensor_is_named() -> None:
    with pytest.raises(ValueError, match="this event has no slot_state; declare it"):
        select(Given(), view_of((1, 1, 8), 0, 0, 3))


def test_rank_is_the_whole_order() -> None:
    nan = float("nan")
    assert rank(torch.tensor([nan, 1.0, float("-inf"), 2.0, 1.0, nan])).tolist() == [3, 1, 4, 2, 0, 5]
    assert rank(torch.tensor([-(2**63), 2**63 - 1, 0, 0])).tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("name", ["recent", "streaming_llm"])
def test_a_window_keeps_the_newest_wherever_they_lie(name: str) -> None:
    view = view_of((1, 1, 8), 2, 1, 2)
    moved = torch.tensor([0, 1, 9, 3, 8, 4, 5, 10]).view(1, 1, 8)
    policy = registry.build(name, {})
    assert isinstance(policy, Scorer)
    assert select(policy, replace(view, positions=moved)).tolist() == [[[0, 1, 2, 4, 7]]]


def test_heads_share_a_draw_only_where_the_policy_says_so() -> None:
    view = view_of((2, 3, 64), 4, 8, 20, seed=3)
    shared, own = registry.build("random_shared", {}), registry.build("random", {})
    assert isinstance(shared, Scorer)
    assert isinstance(own, Scorer)
    kept = select(shared, view)
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    assert not torch.equal(kept[0], kept[1])
    kept = select(own, view)
    assert len({tuple(row) for row in kept.view(6, -1).tolist()}) == 6


def test_blocks_live_and_die_whole_but_for_the_edges() -> None:
    policy = registry.build("random_block", {"block": 8})
    assert isinstance(policy, Scorer)
    kept = select(policy, view_of((1, 4, 80), 8, 8, 32, seed=9))
    for row in kept[0].tolist():
        per_run = [sum(slot // 8 == run for slot in row) for run in range(10)]
        assert per_run[0] == per_run[-1] == 8
        assert sorted(per_run[1:-1]) == [0, 0, 0, 0, 8, 8, 8, 8]


@pytest.mark.parametrize("name", ["random", "random_shared"])
def test_survival_is_the_law_within_exact_binomial_bounds(name: str) -> None:
    """Every candidate slot's survivals over independent draws; error 1e-9 a slot, two-sided."""
    policy = registry.build(name, {})
    assert isinstance(policy, Scorer)
    prot, recent, keep, trials = 5, 4, 20, 4000
    layers = 1 if name == "random" else trials
    shape = (layers, trials // layers, keep + recent)
    kept = select(policy, view_of(shape, prot, recent, keep - prot - recent, seed=2**40 + 1))
    counts = torch.bincount(kept.flatten(), minlength=keep + recent)
    probability = survival(keep, prot, recent)
    assert probability == (keep - recent - prot) / (keep - prot)
    low, high = binom.ppf(5e-10, trials, probability), binom.isf(5e-10, trials, probability)
    inner = counts[prot:keep]
    assert (counts[:prot] == trials).all()
    assert ((inner >= low) & (inner <= high)).all(), inner.tolist()
