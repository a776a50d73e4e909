"""Which chunks a worker is handed, and which one is asked to give some back: longest first, even shares at the end."""

from __future__ import annotations

import math

from orchestrator.chunks import ChunkId
from orchestrator.ledger import Books, Line, Phase, State, Status, WorkerEntry
from orchestrator.messages import Action, Withdraw, capacity


def choose(state: State, worker: WorkerEntry) -> list[tuple[ChunkId, int]]:
    """Chunks to hand to a worker now, each with its attempt number; marks them as owned."""
    books, line = state.books, worker.line
    chosen: list[tuple[ChunkId, int]] = []
    worker.solo = worker.solo and bool(worker.owned)
    room = min(worker.room, _fair_share(books, line) - _rows_held(worker))
    while room > 0 and not worker.solo:
        chunk = books.pop(line.waiting)
        if chunk is None:
            break
        room -= _hand_over(state, chunk, worker, chosen)
    if not worker.owned and worker.room > 0 and (chunk := books.pop(line.alone)) is not None:
        worker.solo = True
        _hand_over(state, chunk, worker, chosen)
    return chosen


def _hand_over(state: State, chunk: ChunkId, worker: WorkerEntry, chosen: list[tuple[ChunkId, int]]) -> int:
    entry = state.books.chunks[chunk]
    entry.attempt += 1
    state.books.move(chunk, Status.OWNED, worker.name)
    worker.assigned += 1
    worker.unacknowledged.append(entry.plan.rows)
    chosen.append((chunk, entry.attempt))
    return entry.plan.rows


def _rows_held(worker: WorkerEntry) -> int:
    return capacity(worker.line.engine) - worker.room


def _fair_share(books: Books, line: Line) -> int:
    """Rows per worker when all that is left is spread evenly: without it the first engine takes the whole tail."""
    if line.pending_rows >= len(line.workers) * capacity(line.engine):
        return capacity(line.engine)
    held = sum(_rows_held(w) for w in map(books.workers.__getitem__, line.workers) if w.phase is Phase.READY)
    return math.ceil((line.pending_rows + held) / len(line.workers))


def steal(state: State, thief: WorkerEntry, actions: list[Action]) -> None:
    """Ask the fullest engine of the line to give back half of what it has not started."""
    books, line = state.books, thief.line
    peers = [books.workers[name] for name in line.workers if name != thief.name]
    loot = {w.name: sorted((w.unstarted & w.owned) - w.withdrawn, key=lambda c: books.chunks[c].rank) for w in peers}
    victim = max(peers, key=lambda w: len(loot[w.name]), default=None)
    if victim is None or not loot[victim.name] or _rows_held(victim) <= _fair_share(books, line):
        return
    chunks = tuple(loot[victim.name][len(loot[victim.name]) // 2 :])
    victim.withdrawn.update(chunks)
    actions.append(Withdraw(victim.name, chunks))
