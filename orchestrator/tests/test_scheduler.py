"""The scheduler's rules, one by one."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.chunks import ChunkId
from orchestrator.ledger import Status
from orchestrator.messages import (
    Assign,
    Cause,
    Failed,
    Found,
    NodeLost,
    NodeUp,
    Pause,
    Quarantine,
    Release,
    Report,
    Reported,
    Resume,
    SetAside,
    StopEngine,
    Tick,
    Withdraw,
    WorkerGone,
    WorkerState,
)
from orchestrator.tests.scheduler_world import LINES, planned, ready, started, world_with


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


def test_a_pause_finishes_what_has_started_frees_the_engine_and_goes_on_later() -> None:
    world = world_with([planned("c", b) for b in range(6)])
    ready(world, "e0001")
    process = world.processes["e0001"]
    first, *rest = sorted(process.held, key=lambda c: c.block)
    process.started.add(first)
    world.report("e0001")
    assert [set(a.chunks) for a in world.tell(Pause(1.0)) if isinstance(a, Withdraw)] == [set(rest)]
    assert world.report("e0001") == []
    world.commit("e0001", first)
    assert [a.reason for a in world.report("e0001") if isinstance(a, StopEngine)] == ["paused"]
    assert world.gone("e0001") == []
    assert not world.state.finished
    assert [a.worker for a in started(world.tell(Resume(2.0)))] == ["e0002"]
    world.run_out()
    assert world.state.books.committed == 6
    assert all(entry.failures == 0 for entry in world.state.books.chunks.values())


def test_an_engine_that_spans_nodes_takes_all_its_seats_or_none_and_gives_all_back() -> None:
    wide = replace(LINES[0], tp=2, pp=2, nodes=2)
    world = world_with([planned("c", b, wide) for b in range(2)], nodes=3, units=2)
    (start,) = started(world.log)
    assert [seat.places for seat in start.seats] == [2, 2]
    assert len({seat.node for seat in start.seats}) == 2
    assert sorted(node.free for node in world.state.books.nodes.values()) == [0, 0, 2]
    world.run_out()
    assert [node.free for node in world.state.books.nodes.values()] == [2, 2, 2]


def test_losing_any_node_of_an_engine_loses_the_engine() -> None:
    wide = replace(LINES[0], tp=2, nodes=2)
    world = world_with([planned("c", b, wide) for b in range(2)], nodes=2, units=1)
    (start,) = started(world.log)
    second = start.seats[1].node
    world.processes[start.worker].alive = False
    world.tell(NodeLost(second, 1.0))
    assert start.worker not in world.state.books.workers
    (left,) = world.state.books.nodes.values()
    assert (left.free, left.units) == (1, 1)
    world.run_out()
    entry = world.state.books.chunks[ChunkId("c", 0, 0)]
    assert (entry.status, entry.reason) == (
        Status.PARKED,
        "no nodes left: needs 2 nodes with 1 places each, 1 have them",
    )


def test_a_place_that_never_came_is_no_strike_and_parks_in_the_end() -> None:
    world = world_with([planned("c", 0)], nodes=2)
    for number in range(1, 4):
        del world.processes[f"e{number:04d}"]
        world.tell(WorkerGone(f"e{number:04d}", "no place within 300 s", 0.0, unplaced=True))
    assert [node.strikes for node in world.state.books.nodes.values()] == [0, 0]
    entry = world.state.books.chunks[ChunkId("c", 0, 0)]
    assert (entry.status, entry.reason) == (Status.PARKED, "no place within 300 s")


def busy(worker: str, *gpus: str) -> Reported:
    return Reported(Report(worker, 1, WorkerState.FAILED, detail="GPU-7 is held by pid 42", busy=gpus), 0.0)


def test_a_held_gpu_is_set_aside_at_its_second_strike_and_the_line_goes_on_with_the_others() -> None:
    world = world_with([planned("c", b) for b in range(4)], units=2)
    world.tell(busy("e0001", "GPU-7"))
    assert not any(isinstance(action, SetAside) for action in world.log)
    world.gone("e0001")
    again = started(world.log)[-1].worker
    world.tell(busy(again, "GPU-7"))
    del world.processes[again]
    assert SetAside(again, "n0", ("GPU-7",), "GPU-7 is held by pid 42") in world.log
    (node,) = world.state.books.nodes.values()
    assert (node.units, node.strikes) == (1, 0)
    world.run_out()
    assert {entry.status for entry in world.state.books.chunks.values()} == {Status.COMMITTED}
    assert node.free == 1


def test_when_every_gpu_is_set_aside_what_waits_is_parked_with_the_reason() -> None:
    world = world_with([planned("c", 0)])
    world.tell(busy("e0001", "GPU-7"))
    world.gone("e0001")
    world.tell(busy("e0002", "GPU-7"))
    del world.processes["e0002"]
    entry = world.state.books.chunks[ChunkId("c", 0, 0)]
    assert (entry.status, world.state.finished) == (Status.PARKED, True)
    assert entry.reason == ("no node left: needs 1 places on one node, the largest has 0; GPU-7 is held by pid 42")


def test_work_waits_for_a_node_to_come_back_and_parks_when_none_does() -> None:
    world = world_with([planned("c", b) for b in range(4)])
    world.state.limits = replace(world.state.limits, node_seconds=300)
    entries = world.state.books.chunks.values()

    def lose(now: float) -> None:
        world.now = now
        world.processes[started(world.log)[-1].worker].alive = False
        world.tell(NodeLost("n0", now))
        world.processes.clear()

    lose(10.0)
    world.tell(Tick(200.0))
    assert {entry.status for entry in entries} == {Status.PENDING}
    world.tell(NodeUp("n0", 1, 250.0))
    lose(260.0)
    world.tell(Tick(400.0))
    assert {entry.status for entry in entries} == {Status.PENDING}
    world.tell(Tick(600.0))
    assert {entry.status for entry in entries} == {Status.PARKED}
    assert next(iter(entries)).reason == "no node left: needs 1 places on one node, the largest has 0"
