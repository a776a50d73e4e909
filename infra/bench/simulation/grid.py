"""The published grid as a simulation sees it: models, tasks, arms, speeds, and how long every answer will be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from orchestrator.chunks import BLOCK
from orchestrator.lengths import NOTHING_LEARNED, Kind, Seen, Source, learn
from orchestrator.tasks.aime import Aime
from orchestrator.tasks.benchmark import Benchmark
from orchestrator.tasks.gpqa_diamond import GpqaDiamond
from orchestrator.tasks.hmmt import Hmmt
from orchestrator.tasks.livecodebench import LiveCodeBench
from orchestrator.tasks.math500 import Math500
from workers.api import EngineSpec


@dataclass(frozen=True, slots=True)
class World:
    """Every assumption. Speeds: tokens/s of one H200, 128 requests of 32k output (arXiv 2609.03430, table 4).

    load          seconds from process start to ready, by model
    fixed_share   part of a full batch's step time that an empty batch would take too
    spread        sigma of log-lengths around the task's own figure
    max_tokens    where answers are cut
    """

    speed: dict[str, dict[str, float]] = field(
        default_factory=lambda: {
            "Qwen3-4B": {"full": 1296, "none": 2046, "queries": 1494, "calibration": 1494},
            "Phi-4-reasoning": {"full": 780, "none": 1737, "queries": 1212, "calibration": 1212},
            "Qwen3-14B": {"full": 925, "none": 1819, "queries": 1303, "calibration": 1303},
            "Qwen3-32B": {"full": 346, "none": 923, "queries": 700, "calibration": 700},
        }
    )
    load: dict[str, float] = field(
        default_factory=lambda: {"Qwen3-4B": 60, "Phi-4-reasoning": 90, "Qwen3-14B": 90, "Qwen3-32B": 150}
    )
    fixed_share: float = 0.6
    spread: float = 0.5
    max_tokens: int = 32768
    requests: int = 128


# Policies by what they need of an engine: arms of one need share engines, protected or not.
ARMS = ("full", "none", "none", "none", "none", "queries", "queries", "queries", "queries", "queries", "queries",
        "calibration")  # fmt: skip
# Problems as published; AIME is 2025 and 2026, HMMT February and November: six tasks in five columns.
TASKS: dict[type[Benchmark], int] = {Math500: 500, GpqaDiamond: 198, Aime: 60, Hmmt: 60, LiveCodeBench: 383}


@dataclass(frozen=True, slots=True)
class CellWork:
    """One cell: its engine, and the generated tokens of every row by sample and problem."""

    name: str
    spec: EngineSpec
    lengths: np.ndarray
    task_tokens: float
    group: str
    arm: int

    @property
    def source(self) -> Source:
        """The cell as the length model sees it."""
        model, task, _ = self.name.split("/")
        return Source(self.name, model, task, Kind.PROTECTED if self.spec.keep_ceiling else Kind.FULL)


def grid(world: World) -> list[CellWork]:
    """4 models x 5 columns x 12 arms. Lengths are keyed: alike for one problem and sample in all arms, not equal."""
    cells = []
    for m, model in enumerate(world.speed):
        for t, (task, problems) in enumerate(TASKS.items()):
            base = np.random.Generator(np.random.Philox(key=[m, t])).normal(size=(task.samples_default, problems))
            for a, need in enumerate(ARMS):
                own = np.random.Generator(np.random.Philox(key=[m * 100 + a + 1, t])).normal(size=base.shape)
                mean = task.expected_tokens * np.exp(world.spread * (0.8 * base + 0.6 * own) - world.spread**2 / 2)
                lengths = np.clip(mean, 200, world.max_tokens)
                keep = 0 if need == "full" else 4096
                needs = () if need in ("full", "none") else ((need, 1),)
                spec = EngineSpec("simulated", model, "0", "bfloat16", 40960, 1024, keep, 64, needs, max_num_seqs=128)
                name, group = f"{model}/{task.name}/{a}", f"{model}/{task.name}"
                cells.append(CellWork(name, spec, lengths, float(task.expected_tokens), group, a))
    return cells


def expectations(cells: Sequence[CellWork], known: str) -> dict[str, np.ndarray]:
    """Tokens that the scheduler expects of a row, by cell: [samples, blocks]. known: task | learned | exact."""
    model = learn(first_samples(cells)) if known == "learned" else NOTHING_LEARNED
    found = {}
    for cell in cells:
        samples, problems = cell.lengths.shape
        rows = cell.lengths
        if known != "exact":
            one = [model.expected(cell.source, str(p), cell.task_tokens) for p in range(problems)]
            rows = np.broadcast_to(np.array(one), (samples, problems))
        ends = range(0, problems, BLOCK)
        found[cell.name] = np.stack([rows[:, first : first + BLOCK].mean(axis=1) for first in ends], axis=1)
    return found


def first_samples(cells: Sequence[CellWork]) -> Iterator[Seen]:
    """Sample 0 of every problem."""
    for cell in cells:
        for problem, tokens in enumerate(cell.lengths[0]):
            yield Seen(cell.source, str(problem), 1, float(tokens))
