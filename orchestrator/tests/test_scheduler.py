"""The scheduler against a hostile world: crashes, silence, late and repeated messages, lost nodes, in any order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.chunks import ChunkId
from orchestrator.ledger import Limits, Phase, State, Status
from orchestrator.messages import (
    Action,
    Added,
    AskDrain,
    Assign,
    Cause,
    Drain,
    Event,
    Failed,
    Found,
    NodeLost,
    NodeUp,
    Planned,
    Quarantine,
    Release,
    Report,
    Reported,
    StartEngine,
    StopEngine,
    Tick,
    Withdraw,
    WorkerGone,
    WorkerState,
)
from orchestrator.scheduler import step, unsettled
from workers.api import EngineSpec

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
LINES = (SPEC, replace(SPEC, keep_ceiling=0), replace(SPEC, tp=2))
LIMITS = Limits(start_seconds=100, heartbeat_seconds=10, drain_seconds=30)


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
            case Failed() | Quarantine():
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
        """From here on nothing fails: the campaign must come to its end."""
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


class SchedulerMachine(RuleBasedStateMachine):
    """Every interleaving Hypothesis can think of."""

    @initialize(nodes=st.integers(1, 3), chunks=st.integers(1, 30))
    def begin(self, nodes: int, chunks: int) -> None:
        self.world = World()
        for number in range(nodes):
            self.world.tell(NodeUp(f"n{number}", 2, 0.0))
        plans = [planned(f"c{b % 3}", b, LINES[b % 3], arm=b % 3) for b in range(chunks)]
        self.world.tell(Added(tuple(plans), 0.0))

    def pick(self, data: st.DataObject, alive: bool = True) -> str | None:
        names = [name for name, process in self.world.processes.items() if process.alive is alive]
        return data.draw(st.sampled_from(names)) if names else None

    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        if (name := self.pick(data)) is not None:
            self.world.processes[name].ready = True
            self.world.report(name)

    @rule(data=st.data(), tell=st.booleans())
    def works(self, data: st.DataObject, tell: bool) -> None:
        name = self.pick(data)
        if name is None or not self.world.processes[name].held:
            return
        process = self.world.processes[name]
        chunk = data.draw(st.sampled_from(sorted(process.held, key=lambda c: (c.cell_id, c.block))))
        if chunk in process.started:
            self.world.commit(name, chunk)
        else:
            process.started.add(chunk)
        if tell:
            self.world.report(name)

    @rule(data=st.data(), cause=st.sampled_from([Cause.RETRYABLE, Cause.RETRYABLE, Cause.INVALID]))
    def chunk_fails(self, data: st.DataObject, cause: Cause) -> None:
        name = self.pick(data)
        if name is None or not self.world.processes[name].held:
            return
        process = self.world.processes[name]
        chunk = data.draw(st.sampled_from(sorted(process.held, key=lambda c: (c.cell_id, c.block))))
        process.released.append(Release(chunk, process.held.pop(chunk), cause, "no"))
        process.started.discard(chunk)

    @rule(data=st.data())
    def process_dies(self, data: st.DataObject) -> None:
        if (name := self.pick(data)) is not None:
            self.world.processes[name].alive = False
            self.world.processes[name].held.clear()

    @rule(data=st.data())
    def death_is_noticed(self, data: st.DataObject) -> None:
        if (name := self.pick(data, alive=False)) is not None:
            self.world.gone(name)

    @rule(data=st.data())
    def engine_gives_up(self, data: st.DataObject) -> None:
        if (name := self.pick(data)) is not None:
            self.world.processes[name].seq += 1
            seq = self.world.processes[name].seq
            fatal = data.draw(st.booleans())
            report = Report(name, seq, WorkerState.FAILED, detail="cannot", fatal=fatal)
            self.world.tell(Reported(report, self.world.now))

    @rule(data=st.data())
    def sends_a_report_that_is_slow(self, data: st.DataObject) -> None:
        if (name := self.pick(data)) is not None:
            self.world.write(name)

    @precondition(lambda self: self.world.history)
    @rule(data=st.data())
    def old_message_comes_again(self, data: st.DataObject) -> None:
        report = data.draw(st.sampled_from(self.world.history))
        self.world.tell(Reported(report, self.world.now))

    @rule(seconds=st.sampled_from([0.5, 6.0, 11.0, 120.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.tell(Tick(self.world.now))

    @precondition(lambda self: len(self.world.state.books.nodes) > 1)
    @rule(data=st.data())
    def node_is_lost(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.world.state.books.nodes)))
        lost = [name for name, process in self.world.processes.items() if process.node == node]
        self.world.tell(NodeLost(node, self.world.now))
        for name in lost:
            del self.world.processes[name]

    @precondition(lambda self: self.world.now > 200)
    @rule()
    def drain(self) -> None:
        self.world.tell(Drain(self.world.now))

    @invariant()
    def one_live_owner(self) -> None:
        holders: dict[ChunkId, list[str]] = {}
        for name, process in self.world.processes.items():
            if process.alive and self.world.known(name):
                for chunk in process.held:
                    holders.setdefault(chunk, []).append(name)
        doubled = {c: names for c, names in holders.items() if len(names) > 1 and c not in self.world.store}
        assert not doubled

    @invariant()
    def no_engine_is_overfull(self) -> None:
        for process in self.world.processes.values():
            assert len(process.held) <= 3

    @invariant()
    def books_balance(self) -> None:
        books = self.world.state.books
        entries = books.chunks.values()
        assert books.committed == sum(e.status is Status.COMMITTED for e in entries)
        assert books.parked == sum(e.status is Status.PARKED for e in entries)
        for status, rows in books.rows.items():
            assert rows == sum(e.plan.rows for e in entries if e.status is status)
        for engine, line in books.lines.items():
            mine = [e for e in entries if e.plan.engine == engine]
            assert line.pending_rows == sum(e.plan.rows for e in mine if e.status is Status.PENDING)
            assert line.unsettled == sum(e.status in (Status.PENDING, Status.OWNED) for e in mine)
        for chunk, entry in books.chunks.items():
            assert (entry.owner is not None) == (entry.status is Status.OWNED)
            assert entry.failures <= entry.attempt
            assert entry.owner is None or chunk in books.workers[entry.owner].owned
            assert entry.status is not Status.COMMITTED or chunk in self.world.store
        for name, node in books.nodes.items():
            used = sum(w.line.units for w in books.workers.values() if w.node == name)
            assert node.free == node.units - used >= 0

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        drained = self.world.state.drain_deadline is not None
        self.world.run_out()
        for entry in self.world.state.books.chunks.values():
            assert drained or entry.status in (Status.COMMITTED, Status.PARKED)
            assert entry.status is not Status.PARKED or entry.reason


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase


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


def test_arms_of_a_block_follow_one_another_and_long_groups_come_first() -> None:
    plans = [planned(f"arm{arm}", block, arm=arm) for arm in range(3) for block in range(2)]
    long = [replace(planned("long", 0, expected=900.0), group="long")]
    world = world_with(plans + long)
    order: list[ChunkId] = []
    while not world.state.finished:
        for name in list(world.processes):
            process = world.processes[name]
            if not process.alive:
                world.gone(name)
                continue
            order += [c for a in ready(world, name) if isinstance(a, Assign) for c, _ in a.chunks]
            for chunk in list(process.held):
                world.commit(name, chunk)
    assert [(c.cell_id, c.block) for c in order] == [("long", 0)] + [(f"arm{a}", b) for b in range(2) for a in range(3)]


def test_an_engine_holds_little_more_than_its_batch() -> None:
    world = world_with([planned("c", b) for b in range(20)])
    ready(world, "e0001")
    assert 8 * len(world.processes["e0001"].held) == 24  # 1.1 x 16 rows, rounded up to whole chunks
    world.report("e0001")
    assert len(world.processes["e0001"].held) == 3


def test_the_last_attempt_of_an_engine_killer_runs_alone_and_parks_alone() -> None:
    world = world_with([planned("c", b) for b in range(4)])
    poison = ChunkId("c", 0, 1)
    for _ in range(40):
        if world.state.finished:
            break
        for name in list(world.processes):
            process = world.processes[name]
            if not process.alive:
                world.gone(name)
                continue
            ready(world, name)
            process.started = set(process.held)
            if poison in process.held:
                process.alive = False
                continue
            for chunk in list(process.held):
                world.commit(name, chunk)
            world.report(name)
    books = world.state.books
    assert {c.block for c, e in books.chunks.items() if e.status is Status.PARKED} == {1}
    assert books.chunks[poison].failures == 3
    assert books.committed == 3


def test_an_engine_that_cannot_start_parks_its_line_with_the_reason_and_nothing_else() -> None:
    world = world_with([planned("bad", 0, LINES[1], expected=900.0), planned("good", 0)])
    (bad,) = world.processes
    world.tell(Reported(Report(bad, 1, WorkerState.FAILED, detail="no such model", fatal=True), 0.0))
    world.run_out()
    entries = world.state.books.chunks
    assert entries[ChunkId("bad", 0, 0)].status is Status.PARKED
    assert entries[ChunkId("bad", 0, 0)].reason == "no such model"
    assert entries[ChunkId("good", 0, 0)].status is Status.COMMITTED


def test_three_silent_starts_park_the_line() -> None:
    world = world_with([planned("c", 0)])
    for number in range(1, 4):
        world.now += 101
        world.tell(Tick(world.now))
        world.gone(f"e{number:04d}")
    world.tell(Tick(world.now))
    entry = world.state.books.chunks[ChunkId("c", 0, 0)]
    assert world.state.finished
    assert entry.status is Status.PARKED
    assert entry.reason == "engine not ready after 100 s"


def test_a_node_is_quarantined_after_two_bad_lives_unless_it_is_the_last() -> None:
    world = world_with([planned("c", b) for b in range(8)], nodes=2, units=1)
    first = world.processes["e0001"].node
    seen = 0
    for _ in range(20):
        for name in list(world.processes):
            if world.processes[name].node == first:
                world.gone(name)
                seen += 1
            elif not world.processes[name].ready:
                ready(world, name)
    assert seen == 2
    assert [a.node for a in world.log if isinstance(a, Quarantine)] == [first]


def test_one_place_runs_one_line_after_the_other() -> None:
    plans = [planned("a", b, LINES[0], arm=0) for b in range(4)] + [planned("b", b, LINES[1], arm=1) for b in range(2)]
    world = world_with(plans)
    world.run_out()
    assert [a.engine.keep_ceiling for a in started(world.log)] == [264, 0]


def test_the_tail_is_shared() -> None:
    plans = [planned("c", b) for b in range(4)]
    world = world_with(plans, nodes=2)
    assert len(world.processes) == 2
    for name in list(world.processes):
        ready(world, name)
    assert [len(p.held) for p in world.processes.values()] == [2, 2]


def test_a_dead_engine_does_not_spoil_chunks_that_it_had_not_started() -> None:
    world = world_with([planned("c", b) for b in range(2)])
    ready(world, "e0001")
    world.processes["e0001"].started = {ChunkId("c", 0, 0)}
    world.report("e0001")
    world.gone("e0001")
    failures = {c.block: e.failures for c, e in world.state.books.chunks.items()}
    assert failures == {0: 1, 1: 0}


def test_an_engine_without_work_takes_over_what_another_has_not_started() -> None:
    world = world_with([planned("c", b) for b in range(6)], nodes=2)
    names = list(world.processes)
    ready(world, names[0])
    ready(world, names[1])
    world.report(names[0])
    for chunk in list(world.processes[names[1]].held):
        world.commit(names[1], chunk)
    for _ in range(4):
        for chunk in list(world.processes[names[1]].held):
            world.commit(names[1], chunk)
        world.report(names[1])
    assert any(isinstance(action, Withdraw) and action.worker == names[0] for action in world.log)


def test_a_silent_engine_loses_its_chunks_and_what_it_still_commits_counts() -> None:
    world = world_with([planned("c", b) for b in range(2)], nodes=2)
    ready(world, "e0001")
    silent = world.processes["e0001"]
    silent.started = set(silent.held)
    late = list(silent.held)
    world.report("e0001")
    world.now += 11
    actions = world.tell(Tick(world.now))
    assert StopEngine("e0001", True, "engine worker silent for 10 s") in actions
    world.tell(Reported(Report("e0001", 9, WorkerState.READY, committed=tuple(late)), world.now))
    world.store.update(late)
    world.run_out()
    assert {entry.status for entry in world.state.books.chunks.values()} == {Status.COMMITTED}
    assert world.state.books.workers == {}


def test_engines_that_die_before_they_start_anything_park_their_line_in_the_end() -> None:
    world = world_with([planned("c", 0)])
    for number in range(1, 4):
        ready(world, f"e{number:04d}")
        world.report(f"e{number:04d}")
        world.gone(f"e{number:04d}", "lost its device")
    world.tell(Tick(world.now))
    entry = world.state.books.chunks[ChunkId("c", 0, 0)]
    assert (entry.status, entry.reason) == (Status.PARKED, "lost its device")


def test_a_repeated_failure_is_neither_counted_twice_nor_taken_for_a_new_one() -> None:
    world = world_with([planned("c", 0), planned("c", 1)])
    chunk = ChunkId("c", 0, 0)
    ready(world, "e0001")
    failed = Report("e0001", 5, WorkerState.READY, accepted=2, released=(Release(chunk, 1, Cause.RETRYABLE, "no"),))
    world.tell(Reported(failed, 0.0))
    world.tell(Reported(failed, 0.0))
    entry = world.state.books.chunks[chunk]
    assert (entry.status, entry.failures) == (Status.PENDING, 1)
    del world.processes["e0001"].held[chunk]
    again = Report("e0001", 6, WorkerState.READY, accepted=2, wants=10)
    assert world.tell(Reported(again, 0.0)) == [Assign("e0001", ((chunk, 2),))]
    world.tell(Reported(failed, 0.0))
    assert (entry.status, entry.failures) == (Status.OWNED, 1)


def test_a_chunk_that_another_driver_committed_is_not_run() -> None:
    world = world_with([planned("c", b) for b in range(2)])
    world.store.update({ChunkId("c", 0, 0), ChunkId("c", 0, 1)})
    world.tell(Found(tuple(world.store), 0.0))
    world.run_out()
    assert not any(isinstance(action, Assign) for action in world.log)


def test_an_engine_larger_than_every_node_is_refused_with_both_numbers() -> None:
    world = world_with([planned("c", 0, LINES[2])], units=1)
    (failed,) = [action for action in world.log if isinstance(action, Failed)]
    assert failed.parked
    assert failed.reason == "no node left: needs 2 places on one node, the largest has 1"
