"""The scheduler against crashes, silence, late and repeated messages and lost nodes, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.chunks import ChunkId
from orchestrator.ledger import Status
from orchestrator.messages import (
    Added,
    Cause,
    Drain,
    NodeLost,
    NodeUp,
    Pause,
    Release,
    Report,
    Reported,
    Resume,
    Retry,
    Tick,
    WorkerState,
)
from orchestrator.tests.scheduler_world import LINES, World, planned


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
            self.world.late.append(self.world.write(name))

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

    @rule()
    def pause_or_go_on(self) -> None:
        paused = self.world.state.paused
        self.world.tell(Resume(self.world.now) if paused else Pause(self.world.now))

    @rule()
    def retry(self) -> None:
        self.world.tell(Retry(self.world.now))
        assert self.world.state.books.parked == 0

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
        self.world.tell(Resume(self.world.now))
        self.world.run_out()
        for entry in self.world.state.books.chunks.values():
            assert drained or entry.status in (Status.COMMITTED, Status.PARKED)
            assert entry.status is not Status.PARKED or entry.reason


SchedulerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
