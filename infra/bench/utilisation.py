"""Idle time, reloads and makespan of the published grid on 8 and 64 GPUs, simulated, against static shards.

`python -m infra.bench.utilisation [--write]` drives the real scheduler (orchestrator.scheduler.step) in virtual time
with engines that batch continuously; the rival gets the same engines and hands out positional shards, one load each, as
the authors' launcher does (16 per cell, the remainder in the last). Nothing here is a measurement of a GPU: speeds are
the published ones, lengths are drawn around each task's own figure, and the conclusions are printed at half and twice
each assumption. What the scheduler knows of lengths is an assumption too: each task's own figure, what
orchestrator.lengths learns of the first sample of every problem, or the lengths themselves.
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

from infra.bench.policy_cost import write
from infra.bench.simulation.grid import CellWork, World, expectations, grid
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
from workers.api import EngineSpec

MARKS = ("<!-- bench-utilisation: begin -->", "<!-- bench-utilisation: end -->")
GPUS_PER_NODE = 8
SHARDS = 16
_IDLE_LOOK_SECONDS = 5.0


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

    def __init__(self, world: World, cells: Sequence[CellWork], gpus: int, known: str = "learned") -> None:
        self.expected = expectations(cells, known)
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
        """As orchestrator.work_list does, from what is expected."""
        longest: dict[str, np.ndarray] = {}
        for cell in self.cells.values():
            means = self.expected[cell.name]
            longest[cell.group] = np.maximum(longest.get(cell.group, means), means)
        for cell in self.cells.values():
            for (sample, block), mean in np.ndenumerate(self.expected[cell.name]):
                rows = min(BLOCK, cell.lengths.shape[1] - block * BLOCK)
                chunk = ChunkId(cell.name, sample, block)
                top = float(longest[cell.group][sample, block])
                yield Planned(chunk, cell.spec, rows, float(mean), cell.group, cell.arm, block_tokens=top)

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


def sensitivities() -> Iterator[tuple[str, World, str]]:
    """The world as assumed, by what is known of lengths; then each assumption at half and twice its value."""
    world = World()
    yield "as assumed", world, "learned"
    yield "lengths: each task's figure", world, "task"
    yield "lengths: known exactly", world, "exact"
    for factor in (0.5, 2.0):
        load = {name: factor * seconds for name, seconds in world.load.items()}
        yield f"load x{factor:g}", replace(world, load=load), "learned"
        yield f"length spread x{factor:g}", replace(world, spread=factor * world.spread), "learned"
        yield f"fixed share x{factor:g}", replace(world, fixed_share=min(0.95, factor * world.fixed_share)), "learned"


HEAD = ("assumption", "GPUs", "scheduler", "hours", "idle", "reload", "empty slots", "loads")


def compared(name: str, world: World, known: str, cells: Sequence[CellWork], gpus: int) -> Iterator[list[str]]:
    """Lines of the table for one world."""
    runs = [("evictbench", Cluster(world, cells, gpus, known).run())]
    if known == "learned":
        runs.append(("static shards", static(world, cells, gpus)))
    for who, found in runs:
        shares = (f"{100 * share:.2f} %" for share in (found.idle, found.reload, found.empty_slots))
        yield [name, str(gpus), who, f"{found.hours:,.1f}", *shares, f"{found.loads:,}"]


@click.command()
@click.option("--gpus", multiple=True, type=int, default=(8, 64), show_default=True)
@click.option("--quick", is_flag=True, help="Only the world as assumed, by what is known of lengths.")
@click.option("--write", "into_page", is_flag=True, help="Put the table into docs/benchmarks.md.")
def main(gpus: tuple[int, ...], quick: bool, into_page: bool) -> None:
    """Print the table of docs/benchmarks.md."""
    console = Console(width=130)
    lines: list[list[str]] = []
    for name, world, known in list(sensitivities())[: 3 if quick else None]:
        cells = grid(world)
        for number in gpus:
            lines += compared(name, world, known, cells, number)
            console.print(f"{name}, {number} GPUs: done", style="dim")
    table = Table(*HEAD, box=None)
    for line in lines:
        table.add_row(*line)
    console.print(table)
    if into_page:
        write(page(lines, grid(World())), MARKS, "Utilisation")


def page(lines: Sequence[Sequence[str]], cells: Sequence[CellWork]) -> list[str]:
    """The part of docs/benchmarks.md."""
    rows = sum(cell.lengths.size for cell in cells)
    tokens = sum(float(cell.lengths.sum()) for cell in cells)
    return [
        "Made by `make bench-utilisation`: simulated time, so it does not depend on the machine.",
        f"The published grid, {len(cells)} cells, {rows:,} rows, {tokens / 1e9:.2f} billion tokens at published",
        "lengths and speeds, through the real scheduler; static shards are the authors' launcher: 16 a cell, one load",
        "each.",
        "Idle: neither running a row nor loading. Empty slots: free places in the batches of busy engines. Lengths are",
        "learned from one sample of every problem unless the line says otherwise. Goals: idle at most 2 %, reload 1 %.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
        *("| " + " | ".join(line) + " |" for line in lines),
    ]


if __name__ == "__main__":
    sys.exit(main())
