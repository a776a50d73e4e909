"""Engines with a planted fault, and the smallest plan that can be run: for tests of workers, backends and campaigns."""

from __future__ import annotations

import os
import resource
import signal
import time
from dataclasses import replace

from orchestrator.cells import Cell, ModelRef, PolicyRef, SamplingRef, TaskRef
from orchestrator.chunks import ChunkId, Row, Work
from policies.budget import Budget, Overflow, Protection
from workers.api import EngineSpec, Eviction, Generation, Provenance, Request, Sampling
from workers.errors import Fatal, Retryable
from workers.simulated import CostModel, SimulatedEngine

SPEC = EngineSpec(
    kind="simulated",
    model="m",
    revision="0",
    dtype="float32",
    max_model_len=2048,
    max_prompt_tokens=64,
    keep_ceiling=264,
    interval=16,
    max_num_seqs=16,
)
QUICK = CostModel(step=1e-4, per_sequence=0.0, load=0.0)
CELL = Cell(
    model=ModelRef("m", "0", "float32", 2048),
    task=TaskRef("t", 1, "0", "0"),
    policy=PolicyRef("random", 1, {}),
    budget=Budget(64, 16, 16),
    protection=Protection.PROMPT,
    n_sink=4,
    overflow=Overflow.GROW,
    sampling=SamplingRef(0.0, 1.0, 0, 0.0, 200),
    protocol="simulated",
    sample_base_seed=0,
    eviction_base_seed=0,
)


def work(block: int, attempt: int = 1, max_tokens: int = 200) -> Work:
    """Eight rows of CELL."""
    chunk = ChunkId(CELL.cell_id, 0, block)
    rows = []
    for problem in range(8 * block, 8 * block + 8):
        eviction = Eviction("random", {}, 64, 16, Protection.PROMPT, 4, seed=problem)
        request = Request(f"p{problem}@{attempt}", (1, 2, problem), Sampling(0.0, max_tokens, seed=problem), eviction)
        rows.append(Row(f"p{problem}", problem, "0" * 64, request))
    return Work(chunk, attempt, tuple(rows))


class FaultyEngine(SimulatedEngine):
    """What goes wrong, and when, by name; any other name is a healthy engine."""

    def __init__(self, spec: EngineSpec, fault: str) -> None:
        super().__init__(spec, QUICK)
        self._fault = fault
        self._steps = 0

    def start(self) -> Provenance:
        """Faults of a start."""
        if self._fault == "cannot-load":
            raise Fatal("model 'm' cannot be loaded: no such file")
        if self._fault == "no-memory":
            raise Retryable("pool does not fit")
        if self._fault == "hangs-at-start":
            time.sleep(3600)
        return super().start()

    def step(self) -> list[Generation]:
        """Faults of a run, at step 20."""
        self._steps += 1
        generations = super().step()
        if self._steps < 20:
            return generations
        if self._fault == "never-answers":
            time.sleep(3600)
        if self._fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "raises":
            raise RuntimeError("the engine core is gone")
        if self._fault == "does-not-evict":
            return [_unevicted(generation) for generation in generations]
        if self._fault == "preempts":
            return [replace(generation, preemptions=1) for generation in generations]
        return generations


def _unevicted(generation: Generation) -> Generation:
    return replace(generation, trace=generation.trace and replace(generation.trace, events=0))


def create(spec: EngineSpec) -> SimulatedEngine:
    """For Launch.create: the model's name is the fault."""
    return FaultyEngine(spec, spec.model)


def full_cannot_load(spec: EngineSpec) -> SimulatedEngine:
    """For a job with `full` among its arms: only that engine fails."""
    return FaultyEngine(spec, "cannot-load" if spec.keep_ceiling == 0 else "none")


def never_answers(spec: EngineSpec) -> SimulatedEngine:
    """Hangs in its 20th step."""
    return FaultyEngine(spec, "never-answers")


def does_not_evict(spec: EngineSpec) -> SimulatedEngine:
    """Answers like a full cache whatever it is asked for."""
    return FaultyEngine(spec, "does-not-evict")


def small_disk(spec: EngineSpec) -> SimulatedEngine:
    """From its start on the process cannot write a file of more than 4 kB: no Parquet file, but every heartbeat."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    return FaultyEngine(spec, "none")
