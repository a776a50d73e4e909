"""The scheduler: a state machine without clock, I/O or cluster: `step(state, event) -> (state, actions)`.

What it promises, whatever the order of crashes, commits, duplicates and late messages (orchestration.md section 1):

* every chunk ends committed or parked, and none is lost;
* a chunk has one live owner; it moves on only after its owner gave it back or was declared dead;
* three attempts without a commit park a chunk; the last attempt runs alone on an engine, so that a chunk that kills
  engines takes no other one down with it; chunks that a dead engine had not started are not blamed;
* an engine that cannot start parks its own line of work and nothing else;
* a node on which two engines in a row ended badly gets no more of them, unless it is the last place there is;
* a GPU that another process holds is set aside at the second start that finds it so, and the line goes on elsewhere.

The state owns mutable books for speed (100,000 chunks, 256 workers): `step` consumes the state it is given; go on with
the one it returns. Late messages are recognised by worker, sequence and attempt numbers.
"""

from __future__ import annotations

from orchestrator.chunks import ChunkId
from orchestrator.ledger import Line, NodeEntry, Phase, State, Status, WorkerEntry, settled
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
    Pause,
    Quarantine,
    Report,
    Reported,
    Resume,
    Retry,
    SetAside,
    StartEngine,
    StopEngine,
    Tick,
    Withdraw,
    WorkerGone,
    WorkerState,
    capacity,
)
from orchestrator.placement import find_seats, needs_engine, other_node_left, why_nowhere
from orchestrator.sharing import choose, steal


def step(state: State, event: Event) -> tuple[State, list[Action]]:
    """Take one event in; returns the state to go on with and what to do now, in order."""
    actions: list[Action] = []
    match event:
        case Added():
            _add(state, event)
        case NodeUp():
            state.books.nodes.setdefault(event.node, NodeEntry(event.units, event.units))
        case NodeLost():
            _lose_node(state, event, actions)
        case Reported():
            _hear(state, event.report, event.now, actions)
        case Found():
            for chunk in event.chunks:
                _commit(state, chunk)
        case WorkerGone():
            _remove(state, event, actions)
        case Tick():
            _judge_deadlines(state, event.now, actions)
        case Drain():
            _drain(state, event.now, actions)
        case Pause():
            _pause(state, event.now, actions)
        case Resume():
            state.paused = False
        case Retry():
            _retry(state)
    if state.hands_out:
        _place_engines(state, event.now, actions)
    return state, actions


def _add(state: State, event: Added) -> None:
    books = state.books
    fresh: dict[str, float] = {}
    for plan in event.chunks:
        if plan.group not in books.group_tokens:
            fresh[plan.group] = max(fresh.get(plan.group, 0.0), plan.expected_tokens)
    books.group_tokens.update(fresh)
    for plan in event.chunks:
        books.add(plan)


def _hear(state: State, report: Report, now: float, actions: list[Action]) -> None:
    worker = state.books.workers.get(report.worker)
    for chunk in report.committed:
        _commit(state, chunk, worker)
    for release in report.released:
        entry = state.books.chunks.get(release.chunk)
        if entry is not None and entry.owner == report.worker and entry.attempt == release.attempt:
            _release(state, release.chunk, release.cause, release.reason, actions)
    if worker is None or report.seq <= worker.seq or worker.phase not in (Phase.STARTING, Phase.READY):
        return
    worker.seq, worker.seen, worker.wants = report.seq, now, report.wants
    worker.unstarted = frozenset(report.unstarted)
    worker.withdrawn &= worker.owned
    while len(worker.unacknowledged) > worker.assigned - report.accepted:
        worker.unacknowledged.popleft()
    if report.state is WorkerState.FAILED and report.busy:
        _find_busy(state, worker, report, now, actions)
    elif report.state is WorkerState.FAILED:
        _declare_dead(state, worker, report.detail, now, actions, fatal=report.fatal)
    elif report.state is WorkerState.READY:
        if worker.phase is Phase.STARTING:
            worker.phase, worker.line.failed_starts = Phase.READY, 0
        _feed(state, worker, now, actions)


def _feed(state: State, worker: WorkerEntry, now: float, actions: list[Action]) -> None:
    line = worker.line
    if state.hands_out:
        chunks = choose(state, worker)
        if chunks:
            actions.append(Assign(worker.name, tuple(chunks)))
            return
        if line.pending_rows == 0 and worker.room > 0:
            steal(state, worker, actions)
    elif not worker.owned:
        _stop(worker, now, actions, hard=False, reason="paused" if state.drain_deadline is None else "drained")
        return
    if not worker.owned and (line.unsettled == 0 or _wanted_elsewhere(state, line)):
        _stop(worker, now, actions, hard=False, reason="nothing left for this engine")


def _wanted_elsewhere(state: State, line: Line) -> bool:
    return any(needs_engine(state, other) for other in state.books.lines.values() if other is not line)


def _commit(state: State, chunk: ChunkId, worker: WorkerEntry | None = None) -> None:
    if chunk not in state.books.chunks:
        return
    state.books.move(chunk, Status.COMMITTED)
    if worker is not None:
        worker.commits += 1
        worker.line.empty_deaths = 0
        for seat in worker.seats:
            state.books.nodes[seat.node].strikes = 0


def _release(state: State, chunk: ChunkId, cause: Cause, reason: str, actions: list[Action]) -> None:
    """A chunk lost its owner without a commit: back in line, alone for its last attempt, or parked."""
    books = state.books
    entry = books.chunks[chunk]
    worker = entry.owner or ""
    if cause is not Cause.RETURNED:
        entry.failures += 1
        entry.reason = reason
    hopeless = cause in (Cause.FATAL, Cause.INVALID) or entry.failures >= state.limits.attempts
    if hopeless:
        books.move(chunk, Status.PARKED)
    else:
        books.move(chunk, Status.PENDING, alone=entry.failures == state.limits.attempts - 1)
    if hopeless or cause is not Cause.RETURNED:
        actions.append(Failed(chunk, entry.attempt, cause, entry.reason, worker, parked=hopeless))


def _stop(worker: WorkerEntry, now: float, actions: list[Action], *, hard: bool, reason: str) -> None:
    worker.phase, worker.since = Phase.STOPPING, now
    worker.line.workers.discard(worker.name)
    actions.append(StopEngine(worker.name, hard, reason))


def _end_badly(
    state: State,
    worker: WorkerEntry,
    reason: str,
    actions: list[Action],
    *,
    fatal: bool = False,
    unplaced: bool = False,
) -> None:
    """A worker is dead or declared so: judge engine and nodes, give its chunks to others."""
    line, started = worker.line, worker.owned - worker.unstarted
    never_ready = worker.phase is Phase.STARTING
    worker.phase = Phase.DEAD
    line.workers.discard(worker.name)
    if never_ready:
        line.failed_starts = max(line.failed_starts + 1, state.limits.attempts if fatal else 0)
    elif not started:
        line.empty_deaths += 1
    ready = any(state.books.workers[name].phase is Phase.READY for name in line.workers)
    if max(line.failed_starts, line.empty_deaths) >= state.limits.attempts and not ready:
        _close(state, line, reason, actions, worker.name)
    if worker.commits == 0 and not fatal and not unplaced:
        _strike(state, worker, reason, actions)
    for chunk in sorted(worker.owned, key=lambda c: state.books.chunks[c].rank):
        _release(state, chunk, Cause.RETRYABLE if chunk in started else Cause.RETURNED, reason, actions)


def _strike(state: State, worker: WorkerEntry, reason: str, actions: list[Action]) -> None:
    """Which of its nodes spoiled an engine is not known: each counts the strike."""
    for seat in worker.seats:
        node = state.books.nodes.get(seat.node)
        if node is None:
            continue
        node.strikes += 1
        if node.strikes >= state.limits.strikes and not node.quarantined:
            node.quarantined = other_node_left(state, worker.line, seat.node)
            if node.quarantined:
                actions.append(Quarantine(seat.node, reason))


def _find_busy(state: State, worker: WorkerEntry, report: Report, now: float, actions: list[Action]) -> None:
    """GPUs of a starting engine are held by other processes: the engine did nothing wrong, the GPUs get a strike."""
    node = state.books.nodes[worker.node]
    node.busy.update(report.busy)
    bad = tuple(gpu for gpu in report.busy if node.busy[gpu] >= state.limits.strikes)
    if not bad:
        _stop(worker, now, actions, hard=True, reason=report.detail)
        return
    # Whoever is started next would be given the same GPUs, so this process keeps them and its places are gone.
    node.units -= worker.line.share
    state.books.aside.update(dict.fromkeys(bad, report.detail))
    worker.line.workers.discard(worker.name)
    del state.books.workers[worker.name]
    actions.append(SetAside(worker.name, worker.node, bad, report.detail))


def _declare_dead(
    state: State, worker: WorkerEntry, reason: str, now: float, actions: list[Action], fatal: bool = False
) -> None:
    _end_badly(state, worker, reason, actions, fatal=fatal)
    worker.since = now
    actions.append(StopEngine(worker.name, hard=True, reason=reason))


def _close(state: State, line: Line, reason: str, actions: list[Action], worker: str = "") -> None:
    """Nothing of this line will run: park what waits. What is owned still may commit."""
    line.closed = reason
    for heap in (line.waiting, line.alone):
        while (chunk := state.books.pop(heap)) is not None:
            entry = state.books.chunks[chunk]
            # An engine that does not start is an attempt too: it has a number and a reason on record.
            entry.attempt += 1
            entry.reason = reason
            state.books.move(chunk, Status.PARKED)
            actions.append(Failed(chunk, entry.attempt, Cause.FATAL, reason, worker, parked=True))


def _remove(state: State, event: WorkerGone, actions: list[Action]) -> None:
    worker = state.books.workers.get(event.worker)
    if worker is None:
        return
    if worker.phase in (Phase.STARTING, Phase.READY):
        _end_badly(state, worker, event.reason, actions, unplaced=event.unplaced)
    assert not worker.owned, f"{worker.name} is gone and still owns chunks"
    del state.books.workers[worker.name]
    for seat in worker.seats:
        if seat.node in state.books.nodes:
            state.books.nodes[seat.node].free += seat.places


def _lose_node(state: State, event: NodeLost, actions: list[Action]) -> None:
    if state.books.nodes.pop(event.node, None) is None:
        return
    seated = [w for w in state.books.workers.values() if event.node in (seat.node for seat in w.seats)]
    for worker in seated:
        _remove(state, WorkerGone(worker.name, f"node {event.node} was lost", event.now), actions)


def _judge_deadlines(state: State, now: float, actions: list[Action]) -> None:
    limits = state.limits
    drained = state.drain_deadline is not None and now >= state.drain_deadline
    for worker in list(state.books.workers.values()):
        if worker.phase is Phase.STARTING and worker.line.unsettled == 0:
            _stop(worker, now, actions, hard=True, reason="nothing left for this engine")
        elif worker.phase is Phase.STARTING and now - worker.since > limits.start_seconds:
            _declare_dead(state, worker, f"engine not ready after {limits.start_seconds:.0f} s", now, actions)
        elif worker.phase is Phase.READY and now - worker.seen > limits.heartbeat_seconds:
            _declare_dead(state, worker, f"engine worker silent for {limits.heartbeat_seconds:.0f} s", now, actions)
        elif worker.phase in (Phase.STOPPING, Phase.DEAD) and now - worker.since > limits.stop_seconds:
            worker.since = now
            actions.append(StopEngine(worker.name, hard=True, reason="did not end when asked"))
        elif drained and worker.phase is Phase.READY:
            for chunk in list(worker.owned):
                _release(state, chunk, Cause.RETURNED, "drained", actions)
            _stop(worker, now, actions, hard=True, reason="drain deadline")


def _drain(state: State, now: float, actions: list[Action]) -> None:
    if state.drain_deadline is not None:
        return
    state.drain_deadline = now + state.limits.drain_seconds
    for worker in state.books.workers.values():
        if worker.phase is Phase.STARTING:
            _stop(worker, now, actions, hard=True, reason="drained before it was ready")
        elif worker.phase is Phase.READY:
            actions.append(AskDrain(worker.name))


def _pause(state: State, now: float, actions: list[Action]) -> None:
    if not state.hands_out:
        return
    state.paused = True
    for worker in state.books.workers.values():
        waiting = worker.unstarted & worker.owned - worker.withdrawn
        if worker.phase is Phase.STARTING:
            _stop(worker, now, actions, hard=True, reason="paused before it was ready")
        elif worker.phase is Phase.READY and waiting:
            worker.withdrawn |= waiting
            actions.append(Withdraw(worker.name, tuple(sorted(waiting, key=lambda c: state.books.chunks[c].rank))))


def _retry(state: State) -> None:
    books = state.books
    for line in books.lines.values():
        line.closed, line.failed_starts, line.empty_deaths = "", 0, 0
    for chunk, entry in books.chunks.items():
        if entry.status is Status.PARKED:
            entry.failures = 0
            books.move(chunk, Status.PENDING)


def _place_engines(state: State, now: float, actions: list[Action]) -> None:
    """Start engines where places are free, for the lines with most work per engine they already have.

    A line keeps its engines until it has nothing pending, so models are loaded as seldom as possible.
    """
    books = state.books
    open_lines = [line for line in books.lines.values() if line.pending_rows]
    _close_impossible(state, open_lines, now, actions)
    if not any(node.free for node in books.nodes.values()):
        return
    while lines := [line for line in open_lines if needs_engine(state, line)]:
        lines.sort(key=lambda line: -line.pending_tokens / (len(line.workers) + 1))
        spot = next(((line, seats) for line in lines if (seats := find_seats(state, line)) is not None), None)
        if spot is None:
            return
        line, seats = spot
        books.started += 1
        name = f"{state.prefix}{books.started:04d}"
        for seat in seats:
            books.nodes[seat.node].free -= seat.places
        wants = capacity(line.engine)
        books.workers[name] = WorkerEntry(name, seats[0].node, line, since=now, seats=seats, wants=wants)
        line.workers.add(name)
        actions.append(StartEngine(name, seats[0].node, line.engine, seats))


def _close_impossible(state: State, lines: list[Line], now: float, actions: list[Action]) -> None:
    books = state.books
    if not books.nodes and not books.started:
        return
    for line in lines:
        if line.closed:
            _close(state, line, line.closed, actions)
        elif line.workers or (reason := why_nowhere(state, line)) is None:
            line.homeless = None
        elif now - (since := now if line.homeless is None else line.homeless) >= state.limits.node_seconds:
            _close(state, line, reason, actions)
        else:
            line.homeless = since


def unsettled(state: State) -> list[ChunkId]:
    """Chunks that are neither committed nor parked."""
    return [chunk for chunk, entry in state.books.chunks.items() if not settled(entry.status)]
