"""A hostile world for the scheduler: nodes, engine processes and messages that tests drive by hand or at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.chunks import ChunkId
from orchestrator.ledger import Limits, Phase, State
from orchestrator.messages import (
    Action,
    Added,
    AskDrain,
    Assign,
    Cause,
    Event,
    Failed,
    Found,
    NodeUp,
    Planned,
    Quarantine,
    Release,
    Report,
    Reported,
    SetAside,
    StartEngine,
    StopEngine,
    Tick,
    Withdraw,
    WorkerGone,
    WorkerState,
)
from orchestrator.scheduler import step, unsettled
from orchestrator.tests.doubles import SPEC
from workers.api import EngineSpec

LINES = (SPEC, replace(SPEC, keep_ceiling=0), replace(SPEC, tp=2))
LIMITS = Limits(start_seconds=100, heartbeat_seconds=10, drain_seconds=30, node_seconds=0)


def planned(cell: str, block: int, engine: EngineSpec = SPEC, arm: int = 0, expected: float = 100.0) -> Planned:
    return Planned(ChunkId(cell, 0, block), engine, 8, expected, group="g", arm=arm)


@dataclass
class Process:
    """An engine worker as it really is, whatever the scheduler believes."""

    engine: EngineSpec
    node: str
    alive: bool = True
    ready: bool = False
    held: dict[ChunkId, int] = field(default_factory=dict)
    started: set[ChunkId] = field(default_factory=set)
    accepted: int = 0
    seq: int = 0
    outbox: list[ChunkId] = field(default_factory=list)
    released: list[Release] = field(default_factory=list)


class World:
    """Carries actions out and keeps the truth: which process lives, what it holds, what is in the store."""

    def __init__(self) -> None:
        self.state = State(LIMITS)
        self.now = 0.0
        self.processes: dict[str, Process] = {}
        self.store: set[ChunkId] = set()
        self.history: list[Report] = []
        self.late: list[Report] = []
        self.log: list[Action] = []

    def tell(self, event: Event) -> list[Action]:
        self.state, actions = step(self.state, event)
        self.log += actions
        for action in actions:
            self.carry_out(action)
        return actions

    def carry_out(self, action: Action) -> None:
        match action:
            case StartEngine(worker, node, engine):
                assert worker not in self.processes, "a name was used twice"
                self.processes[worker] = Process(engine, node)
            case Assign(worker, chunks):
                process = self.processes[worker]
                for chunk, attempt in chunks:
                    process.accepted += 1
                    if process.alive:
                        assert chunk not in process.held
                        process.held[chunk] = attempt
            case Withdraw(worker, chunks):
                self.give_back(self.processes[worker], set(chunks))
            case AskDrain(worker):
                self.give_back(self.processes[worker], set(self.processes[worker].held))
            case StopEngine(worker):
                self.processes[worker].alive = False
                self.processes[worker].held.clear()
            case Failed() | Quarantine() | SetAside():
                pass

    def give_back(self, process: Process, chunks: set[ChunkId]) -> None:
        for chunk in sorted(chunks & (process.held.keys() - process.started), key=lambda c: (c.cell_id, c.block)):
            process.released.append(Release(chunk, process.held.pop(chunk), Cause.RETURNED))

    def report(self, name: str) -> list[Action]:
        return self.tell(Reported(self.write(name), self.now))

    def write(self, name: str) -> Report:
        """A report that may still be on its way when everything has changed."""
        process = self.processes[name]
        capacity = -(-process.engine.max_num_seqs * 11 // 10)
        process.seq += 1
        report = Report(
            name,
            process.seq,
            WorkerState.READY if process.ready else WorkerState.LOADING,
            accepted=process.accepted,
            wants=capacity - 8 * len(process.held),
            committed=tuple(process.outbox),
            released=tuple(process.released),
            unstarted=tuple(process.held.keys() - process.started),
        )
        process.outbox, process.released = [], []
        self.history.append(report)
        return report

    def commit(self, name: str, chunk: ChunkId) -> None:
        process = self.processes[name]
        del process.held[chunk]
        process.started.discard(chunk)
        self.store.add(chunk)
        process.outbox.append(chunk)

    def gone(self, name: str, reason: str = "killed") -> list[Action]:
        found = tuple(chunk for chunk, entry in self.state.books.chunks.items() if entry.owner == name)
        self.tell(Found(tuple(c for c in found if c in self.store), self.now))
        process = self.processes.pop(name)
        process.alive = False
        return self.tell(WorkerGone(name, reason, self.now))

    def known(self, name: str) -> bool:
        worker = self.state.books.workers.get(name)
        return worker is not None and worker.phase in (Phase.STARTING, Phase.READY)

    def run_out(self, limit: int = 2000) -> None:
        """From here on nothing fails: the campaign must come to its end.

        A report may be late but never goes missing while its engine lives: both backends have one call out per engine,
        and one that fails is the engine's end.
        """
        for report in self.late:
            self.tell(Reported(report, self.now))
        for _ in range(limit):
            if self.state.finished:
                return
            self.now += 1
            self.tell(Tick(self.now))
            for name in list(self.processes):
                process = self.processes[name]
                if not process.alive:
                    self.gone(name)
                    continue
                process.ready = True
                for chunk in list(process.held):
                    self.commit(name, chunk)
                self.report(name)
        raise AssertionError(f"not finished: {unsettled(self.state)[:5]}, workers {self.state.books.workers}")


def started(actions: list[Action]) -> list[StartEngine]:
    return [action for action in actions if isinstance(action, StartEngine)]


def world_with(plans: list[Planned], nodes: int = 1, units: int = 1) -> World:
    world = World()
    for number in range(nodes):
        world.tell(NodeUp(f"n{number}", units, 0.0))
    world.tell(Added(tuple(plans), 0.0))
    return world


def ready(world: World, name: str) -> list[Action]:
    world.processes[name].ready = True
    return world.report(name)
