"""What decides the trained reasoner: sizes, stages, seed. Runs of one recipe on one machine give the same weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """A Qwen3 decoder; the vocabulary is the module `vocabulary`'s, embeddings are tied."""

    hidden: int = 192
    intermediate: int = 384
    layers: int = 4
    query_heads: int = 8
    kv_heads: int = 4
    head_size: int = 32
    positions: int = 4096
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-6


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch of `rows` documents of `length` tokens whose problems have `steps` additions (low, high) per family."""

    rows: int
    length: int
    walk_steps: tuple[int, int]
    program_steps: tuple[int, int]

    @property
    def tokens(self) -> int:
        return self.rows * self.length


@dataclass(frozen=True, slots=True)
class Stage:
    """A run of steps with a fresh optimizer.

    decay          last steps, over which the learning rate falls linearly to 1 %
    segments_only  first steps, without whole documents
    whole, masked  afterwards: share of batches with whole documents; share with an eviction mask
    """

    steps: int
    decay: int
    segments_only: int
    whole: float
    masked: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """Clean documents first, eviction masks second: masks from the start slow learning down several times."""

    seed: int = 1
    sizes: Sizes = Sizes()
    segments: Layout = Layout(12, 320, (4, 72), (4, 72))
    whole: Layout = Layout(3, 1280, (20, 37), (20, 33))
    stages: tuple[Stage, ...] = (Stage(2600, 0, 1265, 0.5, 0.0), Stage(2600, 910, 0, 0.55, 0.5))
    rate: float = 4e-3
    warm_up: int = 100
    needles: float = 0.25

    @property
    def steps(self) -> int:
        """Optimizer steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def fingerprint(self) -> str:
        """16 hex digits over every field: a checkpoint of another recipe is never continued."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def stage_of(self, step: int) -> tuple[int, int]:
        """(index of the stage, step within it) of a step of the run."""
        for index, stage in enumerate(self.stages):
            if step < stage.steps:
                return index, step
            step -= stage.steps
        raise IndexError(f"the recipe has {self.steps} steps")

    def rate_at(self, step: int) -> float:
        """Learning rate: linear warm-up, constant, linear decay to 1 %."""
        index, local = self.stage_of(step)
        stage = self.stages[index]
        left = stage.steps - local
        decay = 1.0 if left > stage.decay else 0.01 + 0.99 * left / stage.decay
        return self.rate * min(1.0, (local + 1) / self.warm_up) * decay
