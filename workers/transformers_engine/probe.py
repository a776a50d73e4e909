"""Forced generation under eviction with pins and bans: the engine of the probes (contracts.md section 7).

A request is a script whose tokens are given. Rows of equal shape run as one batch; between two events a whole interval
is one forward. Keys and values really move: selection, slot map, draws and length algebra are those of the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM

from policies.base import Scorer
from policies.calibration import BESIDE_MODEL, Calibration, ModelFacts, load
from policies.registry import build
from workers.api import Eviction
from workers.transformers_engine.probe_batch import Batch, Script

_NAME = "evictbench_probe"


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
        self._batch: Batch | None = None

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

    @torch.inference_mode()
    def follows(self, prompt: Sequence[int], answer: Sequence[int]) -> bool:
        """Whether greedy full-cache decoding gives exactly this answer: one forward instead of one a token."""
        tokens = torch.tensor([[*prompt, *answer]], device=self._device)
        batch = Batch([Script(tuple(tokens[0].tolist()), len(prompt), (), 0)], None, None, 1, self.layers, self.heads,
                       self._device)  # fmt: skip
        self._forward(batch, tokens, every=True)
        return bool((batch.logits[0, len(prompt) - 1 : -1].argmax(-1) == tokens[0, len(prompt) :]).all())

    def _start(self, scripts: Sequence[Script], eviction: Eviction | None, interval: int) -> Batch:
        policy = self._policy(eviction)
        batch = Batch(scripts, eviction, policy, interval, self.layers, self.heads, self._device)
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

    def _advance(self, batch: Batch, tokens: torch.Tensor, end: int, kept: list[torch.Tensor] | None = None) -> None:
        """Feed tokens [B, >= end] up to position `end`, evicting on the way; logits go to `kept` where asked."""
        while batch.n < end:
            batch.evict_if_due()
            stop = min(end, batch.next_event())
            self._forward(batch, tokens[:, batch.n : stop], every=kept is not None)
            if kept is not None:
                kept.append(batch.logits)

    def _free(self, batch: Batch, end: int) -> torch.Tensor:
        """Greedy tokens [B, end - n]; the last one is not fed."""
        made = []
        while True:
            made.append(batch.logits[:, -1].argmax(-1, keepdim=True))
            if batch.n + 1 >= end:
                return torch.cat(made, 1)
            batch.evict_if_due()
            self._forward(batch, made[-1])

    def _forward(self, batch: Batch, tokens: torch.Tensor, every: bool = False) -> None:
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
