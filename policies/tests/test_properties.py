"""What must hold for every policy that is known to the registry; there is no list, so new ones are tested by being."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, hypergeom

from policies import registry
from policies.base import Replacer, Scorer, Windowed, resolve_dotted
from policies.calibration import Calibration, Meta
from policies.compaction import plan
from policies.draws import Draw
from policies.select import Tally, select
from policies.view import CacheView

D = 4
POLICIES = {name: registry.build(name, registry.get(name).example) for name in registry.names()}
SCORERS = {name: policy for name, policy in POLICIES.items() if isinstance(policy, Scorer)}
REPLACERS = {name: policy for name, policy in POLICIES.items() if isinstance(policy, Replacer)}
every_scorer = pytest.mark.parametrize("name", sorted(SCORERS))


@dataclass(frozen=True)
class World:
    """Keys, values and queries of every token of one request, made from a seed: token p is row p of each."""

    layers: int
    heads: int
    group: int
    seed: int
    tokens: int = 64

    def rows(self, kind: int, heads: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 8 + kind)
        return torch.randn(self.layers, heads, self.tokens, D, generator=generator)

    def cached(self, kind: int, positions: torch.Tensor) -> torch.Tensor:
        """The rows [L, H, S, D] that positions name."""
        return self.rows(kind, self.heads).gather(2, positions[..., None].expand(*positions.shape, D))

    def calibration(self) -> Calibration:
        shape = (self.layers, self.heads * self.group, D // 2)
        real, imag = np.random.default_rng(self.seed).normal(size=(2, *shape)).astype(np.float32)
        meta = Meta("", "", 1.0, "half", self.heads, D, D, tokens=1, corpus="")
        return Calibration(real, imag, np.hypot(real, imag) * 1.25, np.array([1.0, 0.01]), meta)

    def event(self, policy: Scorer, positions: torch.Tensor, t: int, event: int, **parts: Any) -> CacheView:
        """Everything that a policy can need, at the moment when t tokens were computed."""
        shape = (self.layers, self.heads, positions.shape[2])
        layers, heads = tuple(range(self.layers)), tuple(range(self.heads))
        window = min(policy.needs.recent_queries, t)
        generator = torch.Generator().manual_seed(self.seed * 8 + 5 + event)
        return CacheView(
            shape=shape,
            t=t,
            layers=layers,
            heads=heads,
            draw=Draw(self.seed, event, layers, heads),
            positions=positions,
            keys=self.cached(0, positions),
            values=self.cached(1, positions),
            queries=self.rows(2, self.heads * self.group)[:, :, t - window : t] if window else None,
            attention=torch.rand(shape, generator=generator),
            token_ids=positions % 7,
            hidden_states=self.rows(3, 1)[0, 0, :t],
            calibration=self.calibration(),
            slot_state=torch.zeros(*shape, policy.needs.slot_state) if policy.needs.slot_state else None,
            **parts,
        )


def observed(policy: Scorer, view: CacheView) -> CacheView:
    return replace(view, slot_state=policy.observe(view)) if policy.needs.slot_state else view


worlds = st.builds(World, st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2**32))
parts = st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(0, 8))
steady = settings(max_examples=12, deadline=None, derandomize=True)


@every_scorer
@steady
@given(worlds, parts, st.booleans())
def test_through_events_the_kept_are_a_set_of_the_right_size_and_nothing_comes_back(
    name: str, world: World, sizes: tuple[int, int, int], newest_compete: bool
) -> None:
    policy, (prot, interval, n_select) = SCORERS[name], sizes
    recent = 0 if newest_compete else interval
    n_select += interval - recent
    keep = prot + recent + n_select
    t = keep + interval
    positions = torch.arange(t).repeat(world.layers, world.heads, 1)
    keys, state = world.cached(0, positions), None
    for event in range(3):
        slots, before = positions.shape[2], positions.clone()
        view = world.event(policy, positions, t, event, prot=prot, recent=recent, n_select=n_select)
        view = observed(policy, view if state is None else replace(view, slot_state=state))
        kept = select(policy, view)
        assert kept.shape == (world.layers, world.heads, keep)
        assert kept.dtype == torch.int64
        assert (kept.diff(dim=-1) > 0).all()
        assert ((kept >= 0) & (kept < slots)).all()
        moves = plan(kept, slots, policy.needs.order)
        carried = [positions, keys, *([] if view.slot_state is None else [view.slot_state])]
        for table in carried:
            moves.apply(table)
        positions, keys, *rest = (table[:, :, :keep] for table in carried)
        held = before.gather(2, kept)
        assert torch.equal(positions.sort(dim=-1).values, held.sort(dim=-1).values)
        assert (positions[..., :prot] == torch.arange(prot)).all()
        newest = torch.arange(t - recent, t)
        assert all(torch.isin(newest, positions[row]).all() for row in np.ndindex(world.layers, world.heads))
        assert not policy.needs.order or (positions.diff(dim=-1) > 0).all()
        assert torch.equal(keys, world.cached(0, positions))
        fresh = torch.arange(t, t + interval).repeat(world.layers, world.heads, 1)
        positions = torch.cat((positions, fresh), dim=2)
        keys = torch.cat((keys, world.cached(0, fresh)), dim=2)
        state = torch.nn.functional.pad(rest[0], (0, 0, 0, interval)) if rest else None
        t += interval


@every_scorer
@steady
@given(worlds, parts)
def test_a_keep_that_holds_everything_is_the_identity(name: str, world: World, sizes: tuple[int, int, int]) -> None:
    prot, recent, n_select = sizes
    slots = prot + recent + n_select
    positions = torch.arange(slots).repeat(world.layers, world.heads, 1)
    view = world.event(SCORERS[name], positions, slots, 0, prot=prot, recent=recent, n_select=n_select)
    assert torch.equal(select(SCORERS[name], view), positions)


@every_scorer
@steady
@given(worlds)
def test_a_layer_and_head_keep_the_same_alone(name: str, world: World) -> None:
    """So batch rows, ranks and engines that go layer by layer agree; all_layers policies are cut by head only."""
    policy = SCORERS[name]
    positions = torch.arange(30).repeat(world.layers, world.heads, 1)
    view = observed(policy, world.event(policy, positions, 30, 1, prot=3, recent=4, n_select=9))
    whole = select(policy, view)
    for head in range(world.heads):
        for layers in [range(world.layers)] if policy.needs.all_layers else [[layer] for layer in range(world.layers)]:
            part = cut(view, list(layers), head, world.group)
            assert torch.equal(select(policy, part)[:, 0], whole[list(layers), head])


def cut(view: CacheView, layers: list[int], head: int, group: int) -> CacheView:
    """The event of some layers and one KV head."""

    def of(name: str) -> torch.Tensor | None:
        tensor: torch.Tensor | None = getattr(view, name)
        return None if tensor is None else tensor[layers][:, head : head + 1]

    queries = None if view.queries is None else view.queries[layers][:, head * group : (head + 1) * group]
    given: dict[str, Any] = {
        name: of(name) for name in ("positions", "keys", "values", "attention", "token_ids", "slot_state")
    }
    numbers = tuple(view.layers[layer] for layer in layers)
    draw = Draw(view.draw.seed, view.draw.event, numbers, (view.heads[head],))
    shape = (len(layers), 1, view.shape[2])
    return replace(view, shape=shape, layers=numbers, heads=(view.heads[head],), draw=draw, queries=queries, **given)


@every_scorer
@steady
@given(worlds, st.sampled_from([float("nan"), float("inf"), float("-inf")]), st.integers(0, 29))
def test_a_cache_that_is_not_finite_still_gives_a_set(name: str, world: World, bad: float, slot: int) -> None:
    policy, tally = SCORERS[name], Tally()
    positions = torch.arange(30).repeat(world.layers, world.heads, 1)
    view = world.event(policy, positions, 30, 1, prot=3, recent=4, n_select=9)
    for tensor in (view.need("keys"), view.need("values"), view.need("attention")):
        tensor[:, :, slot] = bad
    if view.queries is not None:
        view.queries[:, :, 0] = bad
    kept = select(policy, observed(policy, view), tally)
    assert kept.shape == (world.layers, world.heads, 16)
    assert (kept.diff(dim=-1) > 0).all()
    assert (kept[..., :3] == torch.arange(3)).all()
    assert (kept[..., -4:] == torch.arange(26, 30)).all()
    if isinstance(policy, Windowed) and 3 <= slot < 26:
        assert int(tally.nan_scores) == world.layers * world.heads
        assert "vase" in name or not (kept == slot).any()


@pytest.mark.parametrize("name", sorted(name for name, policy in SCORERS.items() if policy.needs.recent_queries))
def test_query_heads_that_do_not_divide_are_refused(name: str) -> None:
    world, policy = World(1, 2, 2, 1), SCORERS[name]
    view = world.event(policy, torch.arange(30).repeat(1, 2, 1), 30, 1, prot=3, recent=4, n_select=9)
    uneven = replace(view, queries=view.need("queries")[:, :3])
    with pytest.raises(ValueError, match="3 query heads over 2 KV heads"):
        select(policy, observed(policy, uneven))


@pytest.mark.parametrize(("prot", "recent", "n_select"), [(-1, 4, 9), (3, -4, 9), (3, 4, -2)])
def test_parts_that_do_not_fit_are_refused(prot: int, recent: int, n_select: int) -> None:
    world = World(1, 1, 1, 1)
    positions = torch.arange(30).repeat(1, 1, 1)
    view = world.event(SCORERS["random"], positions, 30, 0, prot=prot, recent=recent, n_select=n_select)
    with pytest.raises(ValueError, match=f"{prot} protected, {recent} recent and {n_select} selected slots"):
        select(SCORERS["random"], view)


def test_heads_overlap_as_independent_draws_do() -> None:
    """Kept candidates that two heads share, over layers: the mean within exact hypergeometric bounds (error 1e-9)."""
    layers, candidates, chosen = 400, 60, 40
    view = World(1, 1, 1, 1).event(
        SCORERS["random"], torch.arange(64).repeat(1, 1, 1), 64, 0, prot=0, recent=4, n_select=chosen
    )
    rows = tuple(range(layers))
    view = replace(
        view, shape=(layers, 2, 64), layers=rows, heads=(0, 1), draw=Draw(7, 0, rows, (0, 1)), positions=None
    )
    kept = select(SCORERS["random"], view)[..., :chosen]
    shared = sum(int(torch.isin(first, second).sum()) for first, second in kept)
    law = hypergeom(candidates, chosen, chosen)
    half = 6.2 * law.std() * layers**0.5
    assert abs(shared - layers * law.mean()) < half
    same = select(SCORERS["random_shared"], view)
    assert torch.equal(same[:, 0], same[:, 1])


@pytest.mark.parametrize("name", sorted(REPLACERS))
@pytest.mark.parametrize(("keep", "prot", "interval"), [(40, 6, 8), (37, 0, 5)])
def test_in_place_survival_is_the_law_of_its_class(name: str, keep: int, prot: int, interval: int) -> None:
    """A token is at risk once per interval, with 1 / m_c: deaths at first risk over heads, exact bounds (error 1e-9).

    The newest tokens and the protected ones are never overwritten.
    """
    victim_slots = resolve_dotted(REPLACERS[name].victim_slots)
    heads = np.arange(2000)
    where = np.full((len(heads), keep), -1)
    where[:] = np.arange(keep)
    deaths: dict[int, int] = {}
    for n in range(keep, keep + 3 * interval):
        slots = victim_slots(
            np.array([5], np.uint64), np.array([0]), heads, np.array([n]), np.array([keep]), np.array([prot]),
            np.array([keep]), interval,
        )[0, 0]  # fmt: skip
        victims = where[heads, slots]
        assert (victims >= prot).all()
        assert (victims <= n - interval).all()
        young = victims == n - interval
        deaths[n] = int(young.sum())
        where[heads, slots] = n
    for n, dead in deaths.items():
        members = len(range(prot + (n - prot) % interval, keep, interval))
        assert binom.ppf(5e-10, len(heads), 1 / members) <= dead <= binom.isf(5e-10, len(heads), 1 / members), n


def test_the_order_of_kept_slots_is_a_choice() -> None:
    """`score` leaves protected slots first, then the best, then the newest; the sets are the same."""
    world = World(2, 2, 2, 3)
    by_position, by_score = registry.build("snapkv", {}), registry.build("snapkv", {"slot_order": "score"})
    assert isinstance(by_position, Scorer)
    assert isinstance(by_score, Scorer)
    view = world.event(by_score, torch.arange(40).repeat(2, 2, 1), 40, 0, prot=3, recent=5, n_select=10)
    kept = select(by_score, view)
    assert torch.equal(kept.sort(dim=-1).values, select(by_position, view))
    assert (kept[..., :3] == torch.arange(3)).all()
    assert (kept[..., -5:] == torch.arange(35, 40)).all()
    scores = by_score.score(view).gather(2, kept[..., 3:13])
    assert (scores.diff(dim=-1) <= 0).all()
    assert (kept.diff(dim=-1) < 0).any()
    moved = view.need("keys").clone()
    plan(kept, 40, order=True).apply(moved)
    assert torch.equal(moved[:, :, :18], world.cached(0, kept))


forced = st.lists(st.sampled_from("pfb"), min_size=12, max_size=12)


@settings(max_examples=40, deadline=None)
@given(forced, st.integers(0, 12), st.integers(0, 2**32), st.sampled_from(["random", "random_shared", "snapkv"]))
def test_banned_slots_go_first_and_pinned_ones_last(marks: list[str], n_select: int, seed: int, name: str) -> None:
    world, policy = World(1, 2, 1, seed), SCORERS[name]
    positions = torch.arange(16).repeat(1, 2, 1)
    view = world.event(policy, positions, 16, 0, prot=2, recent=2, n_select=n_select)

    def marked(mark: str) -> torch.Tensor:
        return torch.tensor([mark == own for own in ["b", "b", *marks, "b", "b"]]).repeat(1, 2, 1)

    kept = select(policy, replace(view, pinned=marked("p"), banned=marked("b")))
    plain = policy.score(view).expand(1, 2, -1)
    for head in range(2):
        alive = kept[0, head, 2 : 2 + min(n_select, 12)].tolist()
        order = sorted(
            range(2, 14), key=lambda slot: ("pfb".index(marks[slot - 2]), -plain[0, head, slot].item(), slot)
        )
        assert alive == sorted(order[:n_select])
