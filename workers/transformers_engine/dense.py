"""Greedy generation over full K/V with a mask per layer and KV head: what eviction means, without a cache that moves.

Slow and simple on purpose. It shares with the engines only the keyed draws and the slot map (contracts.md section 7):
selection, lengths, events and attention are written a second time here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, DynamicCache

from policies.budget import Budget, effective_keep, protected_tokens
from policies.compaction import plan
from policies.draws import Draw, inplace_victims
from policies.retention import kept_crc, victim_crc
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


class DenseReference:
    """fp32 model of a local checkpoint. One request at a time; not thread-safe."""

    def __init__(self, path: str) -> None:
        AttentionInterface.register(_NAME, self._attend)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=_NAME).eval()
        config = self._model.config
        self._layers, self._heads = range(config.num_hidden_layers), range(config.num_key_value_heads)
        end = self._model.generation_config.eos_token_id
        self._end = set(end if isinstance(end, list) else [end])
        self._alive: torch.Tensor | None = None

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
        result, cache = DenseResult(), DynamicCache()
        request = None if eviction is None else _Request(eviction, len(prompt), interval, self._layers, self._heads)
        self._alive = None
        logits = self._forward(list(prompt), cache)
        while True:
            token = int(logits.argmax())
            result.token_ids.append(token)
            if len(result.token_ids) == max_tokens or (token in self._end and not ignore_end):
                break
            n = len(prompt) + len(result.token_ids) - 1
            if request is not None:
                request.before(n, result)
                alive = torch.zeros(len(self._layers), len(self._heads), n + 1, dtype=torch.bool)
                self._alive = alive.scatter_(2, request.table, True)
            logits = self._forward([token], cache)
        if request is not None:
            result.positions = request.table
        return result

    def _forward(self, tokens: list[int], cache: DynamicCache) -> torch.Tensor:
        output = self._model(input_ids=torch.tensor([tokens]), past_key_values=cache, use_cache=True)
        return output.logits[0, -1]

    def _attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, None]:
        """query [1, H_q, T, D], key and value [1, H, S, D]; output [1, T, H_q, D]."""
        del mask
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = query @ key.transpose(2, 3) * kwargs["scaling"]
        if self._alive is None:
            span = torch.arange(key.shape[2])
            dead = span[None, :] > span[-query.shape[2] :, None]
        else:
            dead = ~self._alive[module.layer_idx].repeat_interleave(group, 0)[None, :, None, :]
        weights = scores.masked_fill(dead, float("-inf")).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), None


class _Request:
    """Which positions each (layer, KV head) still holds, and in which slot: table int64 [L, H, S]."""

    def __init__(self, eviction: Eviction, prompt: int, interval: int, layers: range, heads: range) -> None:
        self._eviction, self._prompt, self._interval = eviction, prompt, interval
        self._layers, self._heads = layers, heads
        self._prot = protected_tokens(eviction.protection, prompt, eviction.n_sink)
        budget = Budget(eviction.keep, interval, eviction.recent)
        self._keep = effective_keep(budget, prompt, self._prot, eviction.overflow)
        self.table = torch.arange(prompt).repeat(len(layers), len(heads), 1)

    def before(self, n: int, result: DenseResult) -> None:
        """Token n enters: evict first when it is time, then give it a slot."""
        if self._eviction.policy == "random_inplace":
            self._replace(n, result)
            return
        if self.table.shape[2] >= self._keep + self._interval and n > self._prompt:
            kept = self._select(result.events)
            result.crc ^= kept_crc(result.events, self._layers, self._heads, self.table.gather(2, kept))
            result.events += 1
            plan(kept, self.table.shape[2], order=False).apply(self.table)
            self.table = self.table[..., : self._keep]
        self._append(n)

    def _append(self, n: int) -> None:
        newest = torch.full((*self.table.shape[:2], 1), n)
        self.table = torch.cat((self.table, newest), dim=2)

    def _select(self, event: int, recent: int | None = None) -> torch.Tensor:
        """Kept slots [L, H, K'] ascending, by comparing every pair of candidates."""
        slots = self.table.shape[2]
        recent = self._eviction.recent if recent is None else recent
        first, last = self._prot, slots - recent
        if self._eviction.policy in ("random", "random_inplace"):
            score = Draw(self._eviction.seed, event, tuple(self._layers), tuple(self._heads)).keys(slots)
        else:
            score = self.table
        candidates = score[..., first:last]
        better = (candidates[..., None, :] > candidates[..., :, None]).sum(-1)
        keep = torch.ones_like(self.table, dtype=torch.bool)
        keep[..., first:last] = better < self._keep - first - recent
        return keep.nonzero()[:, 2].view(*self.table.shape[:2], self._keep)

    def _replace(self, n: int, result: DenseResult) -> None:
        start = self._keep if self._prompt <= self._keep else self._prompt + 1
        if n < start:
            self._append(n)
            return
        if self.table.shape[2] > self._keep:
            kept = self._select(0, self._interval)
            self.table = self.table.gather(2, kept)
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
