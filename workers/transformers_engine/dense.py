"""Greedy generation over full K/V with a mask per layer and KV head: what eviction means, without a cache that moves.

Slow and simple on purpose. It shares with the engines only the policies' scores, the keyed draws and the slot map
(contracts.md section 7): selection, lengths, events, attention and what policies are shown are written a second time
here. Whatever belongs to a token is kept by logical position, so nothing has to follow a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache

from policies.base import Needs, Policy, Replacer, Scorer
from policies.budget import Budget, effective_keep, protected_prefix
from policies.calibration import Calibration
from policies.compaction import plan
from policies.draws import Draw, inplace_victims
from policies.registry import build
from policies.retention import kept_crc, victim_crc
from policies.view import CacheView
from workers.api import Eviction

_NAME = "evictbench_dense"


@dataclass(slots=True)
class DenseResult:
    """A finished generation.

    positions   logical positions cached at the end, int64 [L, H, S]
    crc         kept_crc; events as in EvictionTrace
    """

    token_ids: list[int] = field(default_factory=list)
    events: int = 0
    crc: int = 0
    positions: torch.Tensor | None = None


@dataclass(slots=True)
class _History:
    """What a request's forwards showed so far, by logical position.

    alive     bool [L, H, n]: tokens each head may attend to; None during the prompt
    queries   per layer post-RoPE [H_q, n, D]
    mass      fp32 [L, H, most tokens]: sum of the softmax probabilities (policies.base.Needs.attention)
    state     fp32 [L, H, most tokens, needs.slot_state]
    """

    needs: Needs
    alive: torch.Tensor | None
    queries: list[torch.Tensor]
    mass: torch.Tensor
    state: torch.Tensor


class DenseReference:
    """fp32 model of a local checkpoint. One request at a time; not thread-safe."""

    def __init__(self, path: str, calibration: Calibration | None = None) -> None:
        AttentionInterface.register(_NAME, self._attend)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=_NAME).eval()
        config = self._model.config
        self._layers, self._heads = range(config.num_hidden_layers), range(config.num_key_value_heads)
        end = self._model.generation_config.eos_token_id
        self._end = set(end if isinstance(end, list) else [end])
        self._calibration = calibration
        self._history = self._fresh(Needs(), 0)

    @torch.inference_mode()
    def generate(
        self,
        prompt: tuple[int, ...],
        eviction: Eviction | None,
        interval: int,
        max_tokens: int,
        *,
        ignore_end: bool = False,
    ) -> DenseResult:
        """Greedy tokens of one request; `interval` in tokens as in EngineSpec."""
        result, cache, tokens = DenseResult(), DynamicCache(), list(prompt)
        request = None if eviction is None else _Request(eviction, len(prompt), interval, self._layers, self._heads)
        self._history = self._fresh(request.policy.needs if request else Needs(), len(prompt) + max_tokens)
        logits = self._forward(tokens, cache)
        while True:
            tokens.append(int(logits.argmax()))
            result.token_ids.append(tokens[-1])
            if len(result.token_ids) == max_tokens or (tokens[-1] in self._end and not ignore_end):
                break
            alive = torch.ones(len(self._layers), len(self._heads), len(tokens), dtype=torch.bool)
            if request is not None:
                request.before(len(tokens) - 1, result, lambda: self._view(request, cache, tokens))
                alive = torch.zeros_like(alive).scatter_(2, request.table, True)
            self._history.alive = alive
            logits = self._forward(tokens[-1:], cache)
        if request is not None:
            result.positions = request.table
        return result

    def _fresh(self, needs: Needs, most: int) -> _History:
        layers, heads = len(self._layers), len(self._heads)
        state = torch.zeros(layers, heads, most, needs.slot_state)
        return _History(needs, None, [torch.empty(0)] * layers, torch.zeros(layers, heads, most), state)

    def _view(self, request: _Request, cache: DynamicCache, tokens: list[int]) -> CacheView:
        """What the policy is shown before the newest token's forward."""
        table, needs, history = request.table, request.policy.needs, self._history

        def rows(name: str) -> torch.Tensor:
            whole = torch.stack([getattr(layer, name)[0] for layer in cache.layers])
            return whole.gather(2, table[..., None].expand(*table.shape, whole.shape[-1]))

        queries = torch.stack(history.queries)[:, :, -needs.recent_queries :] if needs.recent_queries else None
        view = request.view(len(tokens) - 1)
        view = replace(
            view,
            keys=rows("keys"),
            values=rows("values"),
            queries=queries,
            attention=history.mass.gather(2, table) if needs.attention else None,
            token_ids=torch.tensor(tokens)[table] if needs.token_ids else None,
            calibration=self._calibration,
        )
        if needs.slot_state and isinstance(request.policy, Scorer):
            index = table[..., None].expand(*table.shape, needs.slot_state)
            before = replace(view, slot_state=history.state.gather(2, index))
            view = replace(view, slot_state=request.policy.observe(before))
            history.state.scatter_(2, index, view.need("slot_state"))
        return view

    def _forward(self, tokens: list[int], cache: DynamicCache) -> torch.Tensor:
        output = self._model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        return output.logits[0, -1]

    def _attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """query [1, H_q, T, D], key and value [1, H, S, D]; output [1, T, H_q, D]."""
        del mask
        heads, layer, history = key.shape[1], module.layer_idx, self._history
        group = query.shape[1] // heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = query @ key.transpose(2, 3) * kwargs["scaling"]
        if history.alive is None:
            span = torch.arange(key.shape[2])
            dead = span[None, :] > span[-query.shape[2] :, None]
        else:
            dead = ~history.alive[layer].repeat_interleave(group, 0)[None, :, None, :]
        weights = scores.masked_fill(dead, float("-inf")).softmax(-1)
        if history.needs.recent_queries:
            known = history.queries[layer]
            history.queries[layer] = torch.cat((known, query[0]), 1) if known.numel() else query[0]
        if history.needs.attention == "prefill" or (history.needs.attention and history.alive is not None):
            history.mass[layer, :, : key.shape[2]] += weights[0].sum(1).unflatten(0, (heads, group)).sum(1)
        return (weights @ value).transpose(1, 2).contiguous(), None


class _Request:
    """Which positions each (layer, KV head) still holds, and in which slot: table int64 [L, H, S]."""

    def __init__(self, eviction: Eviction, prompt: int, interval: int, layers: range, heads: range) -> None:
        self.policy: Policy = build(eviction.policy, eviction.params)
        self._eviction, self._prompt, self._interval = eviction, prompt, interval
        self._layers, self._heads, self._events = tuple(layers), tuple(heads), 0
        budget = Budget(eviction.keep, interval, eviction.recent)
        self._prot = protected_prefix(budget, eviction.protection, prompt, eviction.n_sink, eviction.overflow)
        self._keep = effective_keep(budget, prompt, self._prot, eviction.overflow)
        self.table = torch.arange(prompt).repeat(len(layers), len(heads), 1)

    def before(self, n: int, result: DenseResult, view: Any) -> None:
        """Token n enters: evict first when it is time, then give it a slot. view() is what the policy sees."""
        if isinstance(self.policy, Replacer):
            self._replace(n, result)
            return
        if self.table.shape[2] >= self._keep + self._interval and n > self._prompt:
            assert isinstance(self.policy, Scorer)
            kept = self._select(self.policy, view())
            result.crc ^= kept_crc(self._events, self._layers, self._heads, self.table.gather(2, kept))
            self._events += 1
            plan(kept, self.table.shape[2], order=self.policy.needs.order).apply(self.table)
            self.table = self.table[..., : self._keep]
        self._append(n)
        result.events = self._events

    def view(self, t: int, recent: int | None = None) -> CacheView:
        """The facts of an event before token t, without tensors that come from a model."""
        recent = self._eviction.recent if recent is None else recent
        return CacheView(
            shape=(*self.table.shape[:2], self.table.shape[2]),
            prot=self._prot,
            recent=recent,
            n_select=self._keep - self._prot - recent,
            t=t,
            layers=self._layers,
            heads=self._heads,
            draw=Draw(self._eviction.seed, self._events, self._layers, self._heads),
            positions=self.table,
        )

    def _append(self, n: int) -> None:
        newest = torch.full((*self.table.shape[:2], 1), n)
        self.table = torch.cat((self.table, newest), dim=2)

    def _select(self, policy: Scorer, view: CacheView) -> torch.Tensor:
        """Kept slots [L, H, K'] in the policy's order, by comparing every pair of candidates."""
        first, last = view.prot, view.shape[2] - view.recent
        assert view.n_select < last - first, "an event evicts something"
        score = policy.score(view)[..., first:last].expand(*view.shape[:2], -1)
        mine, other = score[..., :, None], score[..., None, :]
        lower = torch.ones(last - first, last - first, dtype=torch.bool).tril(-1)
        place = ((other > mine) | ((other == mine) & lower)).sum(-1)
        chosen = place.argsort(-1)[..., : view.n_select]
        if policy.slot_order == "position":
            chosen = chosen.sort(-1).values
        ends = torch.arange(first), torch.arange(last, view.shape[2])
        return torch.cat(
            (ends[0].expand(*view.shape[:2], -1), chosen + first, ends[1].expand(*view.shape[:2], -1)), dim=2
        )

    def _replace(self, n: int, result: DenseResult) -> None:
        start = self._keep if self._prompt <= self._keep else self._prompt + 1
        if n < start:
            self._append(n)
            return
        if self.table.shape[2] > self._keep:
            shrink = build("random", {})
            assert isinstance(shrink, Scorer)
            self.table = self.table.gather(2, self._select(shrink, self.view(n, self._interval)))
            result.crc ^= kept_crc(0, self._layers, self._heads, self.table)
        victims = inplace_victims(
            np.array([self._eviction.seed], np.uint64), np.array(self._layers), np.array(self._heads), np.array([n]),
            np.array([self._keep]), np.array([self._prot]), np.array([start]), self._interval,
        )  # fmt: skip
        index = torch.from_numpy(victims[0])[..., None]
        result.crc ^= int(
            victim_crc(np.array([n]), self._layers, self._heads, self.table.gather(2, index)[None, ..., 0])[0]
        )
        self.table.scatter_(2, index, n)
        result.events += 1
