"""A batch of forced scripts on its way through the model: cached slots, events, and what policies ask to see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from policies.base import Scorer
from policies.budget import Budget, effective_keep, protected_tokens
from policies.calibration import Calibration
from policies.compaction import Moves, plan
from policies.draws import Draw
from policies.select import select
from policies.view import CacheView
from workers.api import Eviction


@dataclass(frozen=True, slots=True)
class Script:
    """One forced generation; positions count from the first prompt token.

    tokens   prompt and everything after it
    prompt   leading tokens that are prefilled at once; protection "prompt" is about them
    reads    spans (first, one past last) of tokens to score, behind the prompt, ascending
    seed     eviction seed, u64
    pinned   positions that stay in a (layer, KV head) as long as the budget allows: bool [L, H, tokens] or None
    banned   positions that leave a (layer, KV head) at the first event that they are candidates of; as pinned
    watched  positions whose survival is recorded
    """

    tokens: tuple[int, ...]
    prompt: int
    reads: tuple[tuple[int, int], ...]
    seed: int
    pinned: np.ndarray | None = None
    banned: np.ndarray | None = None
    watched: tuple[int, ...] = ()


@dataclass(slots=True)
class _Memory:
    """What policies may ask for beside keys and values, per layer; None where they do not."""

    queries: list[torch.Tensor | None]
    mass: torch.Tensor | None = None
    state: torch.Tensor | None = None


@dataclass(slots=True)
class Batch:
    """Scripts on their way: n tokens computed, table int64 [B, L, H, S] of logical positions by slot."""

    scripts: Sequence[Script]
    eviction: Eviction | None
    policy: Scorer | None
    interval: int
    layers: int
    heads: int
    device: str
    n: int = 0
    events: int = 0
    cache: DynamicCache = field(default_factory=DynamicCache)
    logits: torch.Tensor = field(default_factory=torch.Tensor)
    alive: list[torch.Tensor] = field(default_factory=list)
    calibration: Calibration | None = None
    script: torch.Tensor = field(init=False)
    table: torch.Tensor = field(init=False)
    memory: _Memory = field(init=False)
    prompt: int = field(init=False)
    _keep: int = field(init=False, default=0)
    _prot: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.prompt = self.scripts[0].prompt
        self.script = torch.tensor([script.tokens for script in self.scripts], device=self.device)
        self.table = torch.zeros(len(self.scripts), self.layers, self.heads, 0, dtype=torch.int64, device=self.device)
        self.memory = _Memory([None] * self.layers)
        if self.eviction is not None:
            rule = self.eviction
            self._prot = protected_tokens(rule.protection, self.prompt, rule.n_sink)
            budget = Budget(rule.keep, self.interval, rule.recent)
            self._keep = effective_keep(budget, self.prompt, self._prot, rule.overflow)

    def copy(self) -> Batch:
        """A fork that shares nothing that changes."""
        fork = replace(self, cache=DynamicCache(), alive=list(self.alive))
        fork.script, fork.table = self.script, self.table.clone()
        for index, layer in enumerate(self.cache.layers):
            fork.cache.update(layer.keys.clone(), layer.values.clone(), index)
        memory = self.memory
        fork.memory = _Memory(
            list(memory.queries),
            None if memory.mass is None else memory.mass.clone(),
            None if memory.state is None else memory.state.clone(),
        )
        return fork

    def extend(self, count: int) -> None:
        """Slots for `count` new tokens."""
        fresh = torch.arange(self.n, self.n + count, device=self.device)
        shape = (*self.table.shape[:3], count)
        self.table = torch.cat((self.table, fresh.expand(shape)), 3)
        needs = self.policy.needs if self.policy else None
        if needs and needs.attention:
            self.memory.mass = _longer(self.memory.mass, torch.zeros(shape, device=self.device), 3)
        if needs and needs.slot_state:
            zeros = torch.zeros((*shape, needs.slot_state), device=self.device)
            self.memory.state = _longer(self.memory.state, zeros, 3)

    def remember(self, layer: int, query: torch.Tensor, key: torch.Tensor, seen: torch.Tensor, scaling: float) -> None:
        """Queries and attention mass of one layer's forward, where the policy needs them."""
        if self.policy is None:
            return
        needs = self.policy.needs
        if needs.recent_queries:
            self.memory.queries[layer] = _longer(self.memory.queries[layer], query, 2)[:, :, -needs.recent_queries :]
        if needs.attention == "prefill" or (needs.attention == "step" and self.n >= self.prompt):
            rows, _, count, size = query.shape
            grouped = query.float().view(rows, self.heads, -1, count, size)
            scores = torch.einsum("bhgtd,bhsd->bhgts", grouped, key.float()) * scaling
            assert self.memory.mass is not None
            self.memory.mass[:, layer] += scores.masked_fill(~seen, float("-inf")).softmax(-1).sum((2, 3))

    def next_event(self) -> int:
        """Position of the first token behind n that meets an event before it is computed."""
        if self.eviction is None:
            return len(self.scripts[0].tokens) + self.n + 1
        start = self._start
        return start if self.n < start else self.n + self.interval - (self.n - start) % self.interval

    @property
    def _start(self) -> int:
        return max(self._keep + self.interval, self.prompt + 1)

    def evict_if_due(self) -> None:
        """Select and move when token n meets an event (contracts.md section 1)."""
        if self.eviction is None or self.n < self._start or (self.n - self._start) % self.interval:
            return
        rows, slots = len(self.scripts), self.table.shape[3]
        assert self.policy is not None
        if self.policy.needs.slot_state:
            self.memory.state = torch.stack([self.policy.observe(self._view(row)) for row in range(rows)])
        kept = self._fold() if self.policy.rowwise else [select(self.policy, self._view(row)) for row in range(rows)]
        moves = plan(torch.cat(tuple(kept)), slots, self.policy.needs.order)
        by_row = Moves(*(index.view(rows, self.layers, self.heads, -1) for index in (moves.src, moves.dst)))
        self._move(by_row)
        self.events += 1
        watched = torch.tensor([script.watched for script in self.scripts], device=self.device, dtype=torch.int64)
        present = self.table[..., None] == watched[:, None, None, None, :]
        self.alive.append(present.any(3))

    def survival(self) -> np.ndarray:
        """bool [B, events, L, H, watched]."""
        width = len(self.scripts[0].watched)
        if not self.alive:
            return np.zeros((len(self.scripts), 0, self.layers, self.heads, width), bool)
        return torch.stack(self.alive, 1).cpu().numpy()

    def _fold(self) -> Iterator[torch.Tensor]:
        """Policies whose rows are independent select for all scripts at once, as further layers."""
        rows, slots = len(self.scripts), self.table.shape[3]
        seeds = np.repeat(np.array([script.seed for script in self.scripts], np.uint64), self.layers)[:, None, None]
        layers = tuple(range(self.layers)) * rows
        draw = Draw(seeds, np.full_like(seeds, self.events), layers, tuple(range(self.heads)))
        view = CacheView(
            shape=(rows * self.layers, self.heads, slots),
            draw=draw,
            layers=layers,
            positions=self.table.flatten(0, 1),
            pinned=self._marked("pinned"),
            banned=self._marked("banned"),
            **self._common(),
        )
        assert self.policy is not None
        yield select(self.policy, view)

    def _view(self, row: int) -> CacheView:
        assert self.policy is not None
        needs, memory, layers = self.policy.needs, self.memory, tuple(range(self.layers))
        table = self.table[row]
        mine = slice(row * self.layers, (row + 1) * self.layers)
        pinned, banned = self._marked("pinned"), self._marked("banned")
        window = [q[row] for q in memory.queries if q is not None]
        return CacheView(
            shape=(self.layers, self.heads, table.shape[2]),
            draw=Draw(self.scripts[row].seed, self.events, layers, tuple(range(self.heads))),
            layers=layers,
            positions=table,
            keys=torch.stack([layer.keys[row] for layer in self.cache.layers]),
            values=torch.stack([layer.values[row] for layer in self.cache.layers]),
            queries=torch.stack(window) if window else None,
            attention=None if memory.mass is None else memory.mass[row],
            slot_state=None if memory.state is None else memory.state[row],
            token_ids=self.script[row][table] if needs.token_ids else None,
            calibration=self.calibration,
            pinned=None if pinned is None else pinned[mine],
            banned=None if banned is None else banned[mine],
            **self._common(),
        )

    def _common(self) -> dict[str, Any]:
        assert self.eviction is not None
        return {
            "prot": self._prot,
            "recent": self.eviction.recent,
            "n_select": self._keep - self._prot - self.eviction.recent,
            "t": self.n,
            "heads": tuple(range(self.heads)),
        }

    def _marked(self, name: str) -> torch.Tensor | None:
        """Slots of pinned or banned positions, bool [B * L, H, S]."""
        marks = [getattr(script, name) for script in self.scripts]
        if all(mark is None for mark in marks):
            return None
        length = len(self.scripts[0].tokens)
        nothing = torch.zeros(self.layers, self.heads, length, dtype=torch.bool)
        table = torch.stack([nothing if mark is None else torch.from_numpy(mark) for mark in marks]).to(self.device)
        return table.gather(3, self.table).flatten(0, 1)

    def _move(self, moves: Moves) -> None:
        for index, layer in enumerate(self.cache.layers):
            mine = Moves(moves.src[:, index], moves.dst[:, index])
            for name in ("keys", "values"):
                rows = getattr(layer, name)
                mine.apply(rows)
                setattr(layer, name, rows[:, :, : self._keep].contiguous())
        flat = Moves(moves.src.flatten(0, 1), moves.dst.flatten(0, 1))
        self.table = self._moved(self.table, flat)
        if self.memory.mass is not None:
            self.memory.mass = self._moved(self.memory.mass, flat)
        if self.memory.state is not None:
            self.memory.state = self._moved(self.memory.state, flat)

    def _moved(self, slots: torch.Tensor, moves: Moves) -> torch.Tensor:
        rows = slots.flatten(0, 1).contiguous()
        moves.apply(rows)
        return rows[:, :, : self._keep].unflatten(0, slots.shape[:2]).contiguous()


def _longer(old: torch.Tensor | None, new: torch.Tensor, dim: int) -> torch.Tensor:
    return new if old is None else torch.cat((old, new), dim)
