"""Idle time, reloads and makespan of the published grid on 8 and 64 GPUs, simulated, against static shards.

`python infra/bench/utilisation.py` drives the real scheduler (orchestrator.scheduler.step) in virtual time with engines
that batch continuously; the rival gets the same engines and hands out positional shards, one load each, as the
authors' launcher does (16 per cell, the remainder in the last). Nothing here is a measurement of a GPU: speeds are the
published ones, lengths are drawn around each task's own figure, and the conclusions are printed at half and twice each
assumption.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.ledger import Limits, State
from orchestrator.messages import (
    Action,
    Added,
    Assign,
    Cause,
    NodeUp,
    Planned,
    Release,
    Report,
    Reported,
    StartEngine,
    StopEngine,
    Withdraw,
    WorkerGone,
    WorkerState,
    capacity,
)
from orchestrator.scheduler import step
from orchestrator.tasks.aime import Aime
from orchestrator.tasks.benchmark import Benchmark
from orchestrator.tasks.gpqa_diamond import GpqaDiamond
from orchestrator.tasks.hmmt import Hmmt
from orchestrator.tasks.livecodebench import LiveCodeBench
from orchestrator.tasks.math500 import Math500
from workers.api import EngineSpec

GPUS_PER_NODE = 8
SHARDS = 16
_IDLE_LOOK_SECONDS = 5.0


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
    expected: float
    group: str
    arm: int


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


@dataclass
class Engine:
    """Continuous batching by processor sharing: all running rows advance alike, at a rate that the batch size sets."""

    world: World
    spec: EngineSpec
    now: float
    progress: float = 0.0
    running: list[tuple[float, int, Any]] = field(default_factory=list)
    waiting: deque[tuple[float, Any]] = field(default_factory=deque)
    busy: float = 0.0
    slots: float = 0.0
    order: Iterator[int] = field(default_factory=count)

    @property
    def step_seconds(self) -> float:
        need = "full" if not self.spec.keep_ceiling else (self.spec.needs[0][0] if self.spec.needs else "none")
        full_batch = self.world.requests / self.world.speed[self.spec.model][need]
        share = self.world.fixed_share
        return full_batch * (share + (1 - share) * len(self.running) / self.world.requests)

    def advance(self, now: float) -> None:
        """Move the clock; nothing finishes in between."""
        if self.running:
            self.progress += (now - self.now) / self.step_seconds
            self.busy += now - self.now
            self.slots += (now - self.now) * len(self.running) / self.world.requests
        self.now = now

    def admit(self) -> list[Any]:
        """Start waiting rows while there is room; returns them."""
        begun = []
        while self.waiting and len(self.running) < self.world.requests:
            length, row = self.waiting.popleft()
            heapq.heappush(self.running, (self.progress + length, next(self.order), row))
            begun.append(row)
        return begun

    def next_finish(self) -> float:
        """When the next running row ends if nothing changes."""
        return self.now + max(0.0, self.running[0][0] - self.progress) * self.step_seconds if self.running else np.inf

    def finish(self) -> Any:
        """Take out the row that ends now."""
        return heapq.heappop(self.running)[2]


@dataclass(frozen=True, slots=True)
class Result:
    """Shares of GPU time: without a running row, loading; and of a busy engine's slots that were empty."""

    hours: float
    idle: float
    reload: float
    empty_slots: float
    loads: int


def result(gpus: int, makespan: float, busy: float, slots: float, loading: float, loads: int) -> Result:
    """Idle is what neither ran nor loaded."""
    total = gpus * makespan
    return Result(makespan / 3600, 1 - (busy + loading) / total, loading / total, 1 - slots / busy, loads)


def static(world: World, cells: Sequence[CellWork], gpus: int) -> Result:
    """Shards in the order of the grid, the next one to the first free GPU."""
    free = [0.0] * gpus
    busy = slots = loading = 0.0
    loads = 0
    for cell in cells:
        problems = cell.lengths.shape[1]
        size = problems // SHARDS
        for shard in range(SHARDS):
            last = problems if shard == SHARDS - 1 else (shard + 1) * size
            rows = cell.lengths[:, shard * size : last].ravel()
            begin = heapq.heappop(free)
            engine = Engine(world, cell.spec, begin + world.load[cell.spec.model])
            engine.waiting.extend((float(length), None) for length in rows)
            engine.admit()
            while engine.running:
                engine.advance(engine.next_finish())
                engine.finish()
                engine.admit()
            heapq.heappush(free, engine.now)
            busy, slots, loading = busy + engine.busy, slots + engine.slots, loading + world.load[cell.spec.model]
            loads += 1
    return result(gpus, max(free), busy, slots, loading, loads)


class Cluster:
    """The scheduler's counterpart: carries its actions out on simulated engines, and answers with reports."""

    def __init__(self, world: World, cells: Sequence[CellWork], gpus: int) -> None:
        self.world, self.cells, self.gpus = world, {cell.name: cell for cell in cells}, gpus
        # Nothing fails here, so no deadline may strike in the long silences of virtual time.
        self.state = State(Limits(start_seconds=1e12, heartbeat_seconds=1e12, stop_seconds=1e12))
        self.queue: list[tuple[float, int, str, int]] = []
        self.order = count()
        self.engines: dict[str, Engine] = {}
        self.version: dict[str, int] = {}
        self.open: dict[str, dict[ChunkId, int]] = {}
        self.started: dict[str, set[ChunkId]] = {}
        self.attempts: dict[ChunkId, int] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.ready_at: dict[str, float] = {}
        self.done: list[Engine] = []
        self.loading = 0.0
        self.end = 0.0

    def run(self) -> Result:
        """Until everything is committed."""
        for node in range(self.gpus // GPUS_PER_NODE):
            self.tell(NodeUp(f"n{node:02d}", GPUS_PER_NODE, 0.0), 0.0)
        self.tell(Added(tuple(self.planned()), 0.0), 0.0)
        while not self.state.finished:
            now, _, name, version = heapq.heappop(self.queue)
            if version == self.version.get(name):
                self.wake(name, now)
        busy, slots = sum(engine.busy for engine in self.done), sum(engine.slots for engine in self.done)
        return result(self.gpus, self.end, busy, slots, self.loading, len(self.done))

    def planned(self) -> Iterator[Planned]:
        for cell in self.cells.values():
            samples, problems = cell.lengths.shape
            for sample in range(samples):
                for block in range(-(-problems // BLOCK)):
                    rows = min(BLOCK, problems - block * BLOCK)
                    chunk = ChunkId(cell.name, sample, block)
                    yield Planned(chunk, cell.spec, rows, cell.expected, cell.group, cell.arm)

    def tell(self, event: Any, now: float) -> None:
        self.state, actions = step(self.state, event)
        for action in actions:
            self.carry_out(action, now)

    def carry_out(self, action: Action, now: float) -> None:
        match action:
            case StartEngine(worker, _, spec):
                self.ready_at[worker] = now + self.world.load[spec.model]
                self.loading += self.world.load[spec.model]
                self.engines[worker] = Engine(self.world, spec, self.ready_at[worker])
                self.open[worker], self.started[worker] = {}, set()
                self.facts[worker] = {"seq": 0, "accepted": 0, "committed": [], "released": []}
                self.schedule(worker, self.ready_at[worker])
            case Assign(worker, chunks):
                for chunk, attempt in chunks:
                    self.accept(worker, chunk, attempt)
                self.engines[worker].advance(max(now, self.engines[worker].now))
                self.begin(worker)
                self.schedule(worker, min(self.engines[worker].next_finish(), now + 3600))
            case Withdraw(worker, chunks):
                for chunk in chunks:
                    if chunk in self.open[worker] and chunk not in self.started[worker]:
                        engine = self.engines[worker]
                        engine.waiting = deque(entry for entry in engine.waiting if entry[1] != chunk)
                        del self.open[worker][chunk]
                        self.facts[worker]["released"].append(Release(chunk, self.attempts[chunk], Cause.RETURNED))
                self.schedule(worker, now)
            case StopEngine(worker):
                self.done.append(self.engines.pop(worker))
                del self.version[worker]
                self.end = max(self.end, now)
                self.tell(WorkerGone(worker, "stopped", now), now)

    def accept(self, worker: str, chunk: ChunkId, attempt: int) -> None:
        lengths = self.cells[chunk.cell_id].lengths[chunk.sample, chunk.block * BLOCK : (chunk.block + 1) * BLOCK]
        self.engines[worker].waiting.extend((float(length), chunk) for length in lengths)
        self.open[worker][chunk] = len(lengths)
        self.attempts[chunk] = attempt
        self.facts[worker]["accepted"] += 1

    def begin(self, worker: str) -> None:
        self.started[worker].update(self.engines[worker].admit())

    def schedule(self, worker: str, when: float) -> None:
        self.version[worker] = self.version.get(worker, 0) + 1
        heapq.heappush(self.queue, (when, next(self.order), worker, self.version[worker]))

    def wake(self, worker: str, now: float) -> None:
        """A row ended, the engine became ready, or it looks for work."""
        engine, facts = self.engines[worker], self.facts[worker]
        engine.advance(now)
        while engine.running and engine.next_finish() <= now + 1e-9:
            chunk = engine.finish()
            self.open[worker][chunk] -= 1
            if not self.open[worker][chunk]:
                del self.open[worker][chunk]
                self.started[worker].discard(chunk)
                facts["committed"].append(chunk)
            self.begin(worker)
        facts["seq"] += 1
        report = Report(
            worker,
            facts["seq"],
            WorkerState.READY,
            accepted=facts["accepted"],
            wants=capacity(engine.spec) - len(engine.running) - len(engine.waiting),
            committed=tuple(facts["committed"]),
            released=tuple(facts["released"]),
            unstarted=tuple(chunk for chunk in self.open[worker] if chunk not in self.started[worker]),
        )
        facts["committed"], facts["released"] = [], []
        self.schedule(worker, engine.next_finish() if engine.running else now + _IDLE_LOOK_SECONDS)
        self.tell(Reported(report, now), now)


def sensitivities() -> Iterator[tuple[str, World]]:
    """The world as assumed, then each assumption at half and twice its value."""
    world = World()
    yield "as assumed", world
    for factor in (0.5, 2.0):
        yield f"load x{factor:g}", replace(world, load={name: factor * s for name, s in world.load.items()})
        yield f"length spread x{factor:g}", replace(world, spread=factor * world.spread)
        yield f"fixed share x{factor:g}", replace(world, fixed_share=min(0.95, factor * world.fixed_share))


@click.command()
@click.option("--gpus", multiple=True, type=int, default=(8, 64), show_default=True)
@click.option("--quick", is_flag=True, help="Only the world as assumed.")
def main(gpus: tuple[int, ...], quick: bool) -> None:
    """Print the table of docs/benchmarks.md."""
    console = Console(width=120)
    table = Table("assumption", "GPUs", "scheduler", "hours", "idle", "reload", "empty slots", "loads", box=None)
    for name, world in list(sensitivities())[: 1 if quick else None]:
        cells = grid(world)
        for number in gpus:
            ours = Cluster(world, cells, number).run()
            for who, found in (("evictbench", ours), ("static shards", static(world, cells, number))):
                shares = (f"{100 * share:.1f} %" for share in (found.idle, found.reload, found.empty_slots))
                table.add_row(name, str(number), who, f"{found.hours:,.1f}", *shares, f"{found.loads:,}")
            console.print(f"{name}, {number} GPUs: done", style="dim")
    console.print(table)
    rows = sum(cell.lengths.size for cell in cells)
    tokens = sum(float(cell.lengths.sum()) for cell in cells)
    console.print(f"{len(cells)} cells, {rows:,} rows, {tokens / 1e9:.2f} billion tokens in the last world.")


if __name__ == "__main__":
    sys.exit(main())
