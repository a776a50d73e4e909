"""Decision time and memory of the scheduler at 100,000 chunks and 256 workers, every chunk run to its commit.

Workers are imagined: each holds what it is given and commits a chunk per report, so that what is measured is the
scheduler alone. Prints time per event (median, p99, longest) and memory per chunk.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections import deque

from orchestrator.chunks import ChunkId
from orchestrator.ledger import State
from orchestrator.messages import (
    Added,
    Assign,
    NodeUp,
    Planned,
    Report,
    Reported,
    StartEngine,
    StopEngine,
    Tick,
    WorkerGone,
    WorkerState,
    capacity,
)
from orchestrator.scheduler import step
from workers.api import EngineSpec

ROWS = 8


def spec(model: int) -> EngineSpec:
    """One of a few models."""
    return EngineSpec("simulated", f"model{model}", "0", "bfloat16", 40960, 1024, 4096, 64)


def plans(chunks: int, models: int, arms: int) -> tuple[Planned, ...]:
    """Chunks spread over models, and over arms that share an engine."""
    made = []
    for number in range(chunks):
        model, arm, block = number % models, number // models % arms, number // (models * arms)
        chunk = ChunkId(f"cell-{model}-{arm}", block // 100, block % 100)
        made.append(Planned(chunk, spec(model), ROWS, 1e4 * (1 + model), f"group{model}", arm))
    return tuple(made)


class Fleet:
    """Imagined workers: what they hold, and how long the scheduler took for each event."""

    def __init__(self) -> None:
        self.state = State()
        self.held: dict[str, deque[ChunkId]] = {}
        self.engines: dict[str, EngineSpec] = {}
        self.accepted: dict[str, int] = {}
        self.gone: list[str] = []
        self.seconds: list[float] = []

    def tell(self, event: Added | NodeUp | Reported | Tick | WorkerGone) -> None:
        """One timed event."""
        begin = time.perf_counter()
        self.state, actions = step(self.state, event)
        self.seconds.append(time.perf_counter() - begin)
        for action in actions:
            match action:
                case StartEngine(worker, _, engine):
                    self.held[worker], self.engines[worker], self.accepted[worker] = deque(), engine, 0
                case Assign(worker, chunks):
                    self.held[worker].extend(chunk for chunk, _ in chunks)
                    self.accepted[worker] += len(chunks)
                case StopEngine(worker):
                    self.gone.append(worker)

    def turn(self, now: float) -> None:
        """Every worker commits one chunk and reports."""
        for name in list(self.held):
            done = (self.held[name].popleft(),) if self.held[name] else ()
            wants = capacity(self.engines[name]) - ROWS * len(self.held[name])
            report = Report(name, int(now), WorkerState.READY, self.accepted[name], wants, committed=done)
            self.tell(Reported(report, now))
        for name in self.gone:
            del self.held[name]
            self.tell(WorkerGone(name, "", now))
        self.gone.clear()
        self.tell(Tick(now))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=256)
    options = parser.parse_args()
    tracemalloc.start()
    work = plans(options.chunks, models=4, arms=12)
    before = tracemalloc.get_traced_memory()[0]
    fleet = Fleet()
    for node in range(options.workers // 8):
        fleet.tell(NodeUp(f"node{node}", 8, 0.0))
    fleet.tell(Added(work, 0.0))
    added = fleet.seconds.pop()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    now = 0.0
    while not fleet.state.finished:
        now += 1.0
        fleet.turn(now)
    taken = sorted(fleet.seconds)
    books = fleet.state.books
    print(
        f"{books.committed:,} chunks on {options.workers} workers, {books.started} engine starts, {len(taken):,} events"
    )
    print(f"entering all chunks: {added:.2f} s (with memory tracing), {held / options.chunks:,.0f} bytes per chunk")
    p50, p99 = taken[len(taken) // 2] * 1e6, taken[len(taken) * 99 // 100] * 1e6
    print(f"per event: median {p50:.0f} us, p99 {p99:.0f} us, longest {taken[-1] * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
