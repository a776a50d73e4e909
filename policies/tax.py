"""What an event of one policy costs beside another: score, select and slot map on this machine, in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from policies.base import Scorer
from policies.compaction import plan
from policies.draws import Draw
from policies.select import select
from policies.view import CacheView


@dataclass(frozen=True, slots=True)
class Shape:
    """A request's cache: layers, query and KV heads, head size, keep, interval and protected prompt in tokens."""

    layers: int
    query_heads: int
    heads: int
    size: int
    keep: int
    interval: int
    prompt: int


def event_seconds(policies: list[Scorer], shape: Shape, rounds: int = 10) -> list[list[float]]:
    """Seconds of one event of one request, [policies][rounds]: every policy once a round, after one round unmeasured.

    Raises ValueError for a policy that needs statistics measured beforehand.
    """
    for policy in policies:
        if policy.needs.calibration:
            raise ValueError(f"policy '{policy.name or type(policy).__name__}' needs calibration.")
    found: list[list[float]] = [[] for _ in policies]
    for number in range(rounds + 1):
        for policy, seconds in zip(policies, found, strict=True):
            view = _view(policy, shape, number)
            started = time.perf_counter()
            plan(select(policy, view), shape.keep + shape.interval, policy.needs.order)
            if number:
                seconds.append(time.perf_counter() - started)
    return found


def _view(policy: Scorer, shape: Shape, event: int) -> CacheView:
    """A cache of keyed noise, as full as it is right before an event, with what the policy needs."""
    slots, noise = shape.keep + shape.interval, torch.Generator().manual_seed(event)
    layers, heads = tuple(range(shape.layers)), tuple(range(shape.heads))
    size, needs = (shape.layers, shape.heads, slots), policy.needs
    t = 4 * slots

    def tensor(*rest: int) -> torch.Tensor:
        return torch.randn(*rest, generator=noise)

    queries = (shape.layers, shape.query_heads, needs.recent_queries, shape.size)
    return CacheView(
        shape=size,
        prot=shape.prompt,
        recent=shape.interval,
        n_select=shape.keep - shape.prompt - shape.interval,
        t=t,
        layers=layers,
        heads=heads,
        draw=Draw(event, event, layers, heads),
        positions=torch.arange(0, t, 4).expand(size).contiguous(),
        keys=tensor(*size, shape.size),
        values=tensor(*size, shape.size),
        queries=tensor(*queries) if needs.recent_queries else None,
        attention=tensor(*size).abs() if needs.attention else None,
        slot_state=tensor(*size, needs.slot_state) if needs.slot_state else None,
        hidden_states=tensor(t, shape.query_heads * shape.size) if needs.hidden_states else None,
        token_ids=torch.randint(0, 1000, size, generator=noise) if needs.token_ids else None,
    )
