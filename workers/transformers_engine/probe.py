"""Forced generation under eviction with pins and bans: the engine of the probes (contracts.md section 7).

A request is a script whose tokens are given. Rows of equal shape run as one batch; between two events a whole interval
is one forward. Keys and values really move: selection, slot map, draws and length algebra are those of the engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache

from policies.base import Scorer
from policies.budget import Budget, effective_keep, protected_tokens
from policies.calibration import BESIDE_MODEL, Calibration, ModelFacts, load
from policies.compaction import Moves, plan
from policies.draws import Draw
from policies.registry import build
from policies.select import select
from policies.view import CacheView
from workers.api import Eviction

_NAME = "evictbench_probe"


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


@dataclass(frozen=True, slots=True)
class Reading:
    """What one script showed.

    logprobs  natural log-probability of each token of each read under the forced prefix
    hits      whether that token was the most probable one
    free      tokens decoded greedily from the first read's first position on, up to the last read's end
    alive     bool [events, L, H, watched]: cached after each event
    """

    logprobs: tuple[tuple[float, ...], ...]
    hits: tuple[tuple[bool, ...], ...]
    free: tuple[int, ...]
    alive: np.ndarray


class ProbeEngine:
    """A checkpoint in Transformers. One batch at a time; not thread-safe."""

    def __init__(self, path: str, revision: str, dtype: str = "float32", device: str = "cpu") -> None:
        AttentionInterface.register(_NAME, self._attend)
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), attn_implementation=_NAME
        )
        self._model = self._model.to(device).eval()
        self._path, self._revision, self._device = Path(path), revision, device
        config = self._model.config
        self.layers, self.heads = config.num_hidden_layers, config.num_key_value_heads
        self._batch: _Batch | None = None

    @torch.inference_mode()
    def read(self, scripts: Sequence[Script], eviction: Eviction | None, interval: int) -> list[Reading]:
        """Readings of scripts that agree in length, prompt and reads; `eviction.seed` is ignored, scripts bring theirs.

        Raises ValueError for scripts of unequal shape and for a policy that this engine cannot run.
        """
        shapes = {(len(script.tokens), script.prompt, script.reads) for script in scripts}
        if len(shapes) != 1:
            raise ValueError(f"scripts of one batch must have equal lengths, prompts and reads; got {sorted(shapes)}")
        ((_, _, reads),) = shapes
        batch = self._start(scripts, eviction, interval)
        first, end = reads[0][0], reads[-1][1]
        self._advance(batch, batch.script, first)
        fork = batch.copy()
        logits = [batch.logits[:, -1:]]
        self._advance(batch, batch.script, end, logits)
        scores = torch.cat(logits, 1)[:, : end - first].float().log_softmax(-1)
        free = self._free(fork, end)
        target = batch.script[:, first:end, None]
        logprobs = scores.gather(2, target)[..., 0]
        hits = scores.argmax(-1) == target[..., 0]
        alive = batch.survival()
        return [
            Reading(
                tuple(tuple(logprobs[row, a - first : b - first].tolist()) for a, b in reads),
                tuple(tuple(hits[row, a - first : b - first].tolist()) for a, b in reads),
                tuple(free[row].tolist()),
                alive[row],
            )
            for row in range(len(scripts))
        ]

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[int, ...]]:
        """Greedy full-cache answers to prompts of one length, cut before the end token."""
        scripts = [Script((*prompt, 0), len(prompt), (), 0) for prompt in prompts]
        batch = self._start(scripts, None, 1)
        free = self._free(batch, len(prompts[0]) + max_tokens).tolist()
        ends = self._model.generation_config.eos_token_id
        stop = set(ends if isinstance(ends, list) else [ends])
        return [tuple(row[: next((i for i, token in enumerate(row) if token in stop), len(row))]) for row in free]

    def _start(self, scripts: Sequence[Script], eviction: Eviction | None, interval: int) -> _Batch:
        policy = self._policy(eviction)
        batch = _Batch(scripts, eviction, policy, interval, self.layers, self.heads, self._device)
        if policy is not None and policy.needs.calibration:
            batch.calibration = self._calibration()
        self._forward(batch, batch.script[:, : batch.prompt])
        return batch

    def _policy(self, eviction: Eviction | None) -> Scorer | None:
        if eviction is None:
            return None
        policy = build(eviction.policy, eviction.params)
        if not isinstance(policy, Scorer):
            raise ValueError(f"policy '{policy.name}' has no events; probes need a policy that selects at events")
        if policy.needs.hidden_states:
            raise ValueError(f"policy '{policy.name}' needs hidden states, which probes do not record")
        return policy

    def _calibration(self) -> Calibration:
        return load(self._path / BESIDE_MODEL, ModelFacts.read(self._path, self._revision))

    def _advance(self, batch: _Batch, tokens: torch.Tensor, end: int, kept: list[torch.Tensor] | None = None) -> None:
        """Feed tokens [B, >= end] up to position `end`, evicting on the way; logits go to `kept` where asked."""
        while batch.n < end:
            batch.evict_if_due()
            stop = min(end, batch.next_event())
            self._forward(batch, tokens[:, batch.n : stop], every=kept is not None)
            if kept is not None:
                kept.append(batch.logits)

    def _free(self, batch: _Batch, end: int) -> torch.Tensor:
        """Greedy tokens [B, end - n]; the last one is not fed."""
        made = []
        while True:
            made.append(batch.logits[:, -1].argmax(-1, keepdim=True))
            if batch.n + 1 >= end:
                return torch.cat(made, 1)
            batch.evict_if_due()
            self._forward(batch, made[-1])

    def _forward(self, batch: _Batch, tokens: torch.Tensor, every: bool = False) -> None:
        count = tokens.shape[1]
        positions = torch.arange(batch.n, batch.n + count, device=self._device).expand_as(tokens)
        batch.extend(count)
        self._batch = batch
        output = self._model(
            input_ids=tokens, position_ids=positions, past_key_values=batch.cache, use_cache=True,
            logits_to_keep=0 if every else 1,
        )  # fmt: skip
        self._batch = None
        batch.n += count
        batch.logits = output.logits

    def _attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """query [B, H_q, T, D], key and value [B, H, S, D] of which the newest T are the queries' own."""
        del mask
        assert self._batch is not None
        count, slots, group = query.shape[2], key.shape[2], query.shape[1] // key.shape[1]
        seen = torch.ones(count, slots, dtype=torch.bool, device=query.device).tril(slots - count)
        self._batch.remember(module.layer_idx, query, key, seen, kwargs["scaling"])
        # A group's query heads stand in the query dimension, so that keys and values are not copied for each of them.
        grouped = query.reshape(query.shape[0], key.shape[1], group * count, -1)
        out = torch.nn.functional.scaled_dot_product_attention(
            grouped, key, value, attn_mask=None if count == 1 else seen.repeat(group, 1), scale=kwargs["scaling"]
        ).view(query.shape)
        return out.transpose(1, 2).contiguous(), None


@dataclass(slots=True)
class _Memory:
    """What policies may ask for beside keys and values, per layer; None where they do not."""

    queries: list[torch.Tensor | None]
    mass: torch.Tensor | None = None
    state: torch.Tensor | None = None


@dataclass(slots=True)
class _Batch:
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

    def copy(self) -> _Batch:
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
