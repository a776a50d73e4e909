"""Events: select over all layers of every request that fires in a step, move rows, book what happened.

Requests that fire together and look alike share one selection: their (request, layer) pairs are folded into the
leading axis of one CacheView, so the cost per step does not grow with the number of requests that fire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from policies import compaction, retention
from policies.base import Policy, Scorer
from policies.draws import Draw
from policies.methods.random_attention import Random
from policies.select import select
from policies.view import CacheView
from workers.vllm_engine.state import Requests, Step, order_matters

Move = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""(layer, batch rows [N], heads [N], src slots [N], dst slots [N]): copy K and V rows inside one layer's cache."""


@dataclass(frozen=True, slots=True)
class _Alike:
    """What requests must have in common to be selected together; tokens."""

    policy: Policy
    filled: int
    keep: int
    prot: int
    recent: int
    n_select: int
    order: bool


def run(requests: Requests, step: Step, move: Move) -> None:
    """Carry out every event of a step: brings each firing row's cache to its keep."""
    groups: dict[_Alike, list[int]] = defaultdict(list)
    for row in np.flatnonzero(step.fires):
        groups[_alike(requests, int(step.index[row]), int(step.n[row]))].append(int(row))
    for alike, rows in groups.items():
        _select_and_move(requests, step, alike, np.array(rows), move)


def _alike(requests: Requests, i: int, n: int) -> _Alike:
    plan = requests.plans[i]
    assert plan is not None
    # A replacer has no scores; the one time its prompt does not fit it drops slots at random.
    policy = plan.policy if isinstance(plan.policy, Scorer) else Random()
    filled = requests.before_event(i, n)
    return _Alike(policy, filled, plan.lengths.keep, plan.prot, plan.recent, plan.n_select, order_matters(plan))


def _select_and_move(requests: Requests, step: Step, alike: _Alike, rows: np.ndarray, move: Move) -> None:
    geometry, index = requests.geometry, step.index[rows]
    n_layers, n_heads = len(geometry.layers), len(geometry.heads)
    per_layer = np.repeat(np.arange(len(rows)), n_layers)
    events = np.where(requests.in_place[index], 0, requests.events[index])
    positions = torch.from_numpy(requests.positions[index, :, :, : alike.filled].astype(np.int64))
    view = CacheView(
        positions=positions.flatten(0, 1),
        prot=alike.prot,
        recent=alike.recent,
        n_select=alike.n_select,
        t=int(step.n[rows[0]]),
        draw=Draw(
            seed=requests.seeds[index][per_layer],
            event=events[per_layer],
            layers=np.tile(geometry.layers, len(rows)),
            heads=geometry.heads,
        ),
    )
    kept = select(alike.policy, view)
    moves = compaction.plan(kept, alike.filled, alike.order)
    after = view.positions.clone()
    after.scatter_(2, moves.dst, view.positions.gather(2, moves.src))
    after = after[..., : alike.keep].view(len(rows), n_layers, n_heads, alike.keep)
    _move_rows(moves, rows, n_layers, n_heads, move)
    held = after.numpy()
    requests.positions[index, :, :, : alike.keep] = held
    scored = ~requests.in_place[index]
    requests.crc[index[scored]] ^= retention.kept_crc(
        events[scored], geometry.layers, geometry.heads, held[scored]
    )
    requests.events[index[scored]] += 1


def _move_rows(moves: compaction.Moves, rows: np.ndarray, n_layers: int, n_heads: int, move: Move) -> None:
    """Hand each layer its moves; the padding of `moves` (src == dst) copies a row onto itself."""
    shape = (len(rows), n_layers, n_heads, moves.src.shape[-1])
    src, dst = moves.src.view(shape), moves.dst.view(shape)
    batch = torch.from_numpy(rows).view(-1, 1, 1).expand(shape[0], shape[2], shape[3]).reshape(-1)
    heads = torch.arange(n_heads).view(1, -1, 1).expand(shape[0], shape[2], shape[3]).reshape(-1)
    for layer in range(n_layers):
        move(layer, batch, heads, src[:, layer].reshape(-1), dst[:, layer].reshape(-1))

