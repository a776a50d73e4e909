"""The scheduler's books: chunks, lines of work per engine, workers, nodes. No decisions here (scheduler.py makes them).

Every change of a chunk's status goes through `Books.move`, which keeps the totals that decisions read in O(1).
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.chunks import ChunkId
from orchestrator.messages import Planned, Seat
from workers.api import EngineSpec

Rank = tuple[float, str, int, float, int, int]


class Status(StrEnum):
    """Where a chunk is."""

    PENDING = "pending"
    OWNED = "owned"
    COMMITTED = "committed"
    PARKED = "parked"


class Phase(StrEnum):
    """Where a worker is; the chunks of a STOPPING or DEAD one belong to others already."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


@dataclass(slots=True)
class ChunkEntry:
    """One chunk. failures = attempts that ended without a commit and were its own doing."""

    plan: Planned
    rank: Rank
    status: Status = Status.PENDING
    owner: str | None = None
    attempt: int = 0
    failures: int = 0
    reason: str = ""


@dataclass(slots=True)
class Line:
    """The work of one engine specification.

    waiting, alone  heaps of (rank, chunk); chunks of `alone` run one at a time on an otherwise empty engine
    closed          why nothing of this line will run any more
    homeless        since when no node can hold its engine, empty or not
    """

    engine: EngineSpec
    waiting: list[tuple[Rank, ChunkId]] = field(default_factory=list)
    alone: list[tuple[Rank, ChunkId]] = field(default_factory=list)
    pending_rows: int = 0
    pending_tokens: float = 0.0
    unsettled: int = 0
    workers: set[str] = field(default_factory=set)
    failed_starts: int = 0
    empty_deaths: int = 0
    closed: str = ""
    homeless: float | None = None

    @property
    def units(self) -> int:
        """Places that one engine takes."""
        return self.share * self.engine.nodes

    @property
    def share(self) -> int:
        """Places that one engine takes on each of its nodes."""
        return -(-self.engine.tp * self.engine.pp // self.engine.nodes)


@dataclass(slots=True)
class WorkerEntry:
    """One engine worker. `unacknowledged` holds the rows of assignments that its last report had not seen."""

    name: str
    node: str
    line: Line
    since: float
    seats: tuple[Seat, ...] = ()
    phase: Phase = Phase.STARTING
    seen: float = 0.0
    seq: int = -1
    wants: int = 0
    assigned: int = 0
    unacknowledged: deque[int] = field(default_factory=deque)
    owned: set[ChunkId] = field(default_factory=set)
    unstarted: frozenset[ChunkId] = frozenset()
    withdrawn: set[ChunkId] = field(default_factory=set)
    commits: int = 0
    solo: bool = False

    @property
    def room(self) -> int:
        """Rows that may still be handed over, counting what is on its way."""
        return self.wants - sum(self.unacknowledged)


@dataclass(slots=True)
class NodeEntry:
    """One machine. strikes = lives of engines in a row that ended badly without a commit; busy = starts by GPU that
    found it held by another process."""

    units: int
    free: int
    strikes: int = 0
    quarantined: bool = False
    busy: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Books:
    """All of it, with running totals. aside = why, for every GPU that is given to no engine."""

    chunks: dict[ChunkId, ChunkEntry] = field(default_factory=dict)
    lines: dict[EngineSpec, Line] = field(default_factory=dict)
    workers: dict[str, WorkerEntry] = field(default_factory=dict)
    nodes: dict[str, NodeEntry] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)
    group_tokens: dict[str, float] = field(default_factory=dict)
    committed: int = 0
    parked: int = 0
    started: int = 0
    rows: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))

    def add(self, plan: Planned) -> None:
        """Enter a new chunk as pending; one that is known already is left as it is."""
        if plan.chunk in self.chunks:
            return
        line = self.lines.setdefault(plan.engine, Line(plan.engine))
        # Arms of one (sample, block) follow one another, so that comparisons become paired early.
        place = plan.chunk.sample, -plan.block_tokens, plan.chunk.block, plan.arm
        rank = (-self.group_tokens[plan.group], plan.group, *place)
        self.chunks[plan.chunk] = ChunkEntry(plan, rank, Status.OWNED, attempt=plan.attempts)
        self.rows[Status.OWNED] += plan.rows
        line.unsettled += 1
        self.move(plan.chunk, Status.PENDING)

    def move(self, chunk: ChunkId, status: Status, owner: str | None = None, alone: bool = False) -> None:
        """Change a chunk's status and owner and every total that follows from them."""
        entry = self.chunks[chunk]
        line = self.lines[entry.plan.engine]
        was = entry.status
        if entry.owner is not None and entry.owner in self.workers:
            self.workers[entry.owner].owned.discard(chunk)
        sign = (status is Status.PENDING) - (was is Status.PENDING)
        line.pending_rows += sign * entry.plan.rows
        line.pending_tokens += sign * entry.plan.rows * entry.plan.expected_tokens
        line.unsettled += settled(was) - settled(status)
        self.committed += (status is Status.COMMITTED) - (was is Status.COMMITTED)
        self.parked += (status is Status.PARKED) - (was is Status.PARKED)
        self.rows[was] -= entry.plan.rows
        self.rows[status] += entry.plan.rows
        entry.status, entry.owner = status, owner
        if owner is not None:
            self.workers[owner].owned.add(chunk)
        if sign > 0:
            heapq.heappush(line.alone if alone else line.waiting, (entry.rank, chunk))

    def pop(self, heap: list[tuple[Rank, ChunkId]]) -> ChunkId | None:
        """Next pending chunk of a heap; entries that were settled meanwhile are dropped on the way."""
        while heap:
            _, chunk = heapq.heappop(heap)
            if self.chunks[chunk].status is Status.PENDING:
                return chunk
        return None


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts and deadlines, seconds. starting_per_node staggers engine starts (they peak in host memory).

    node_seconds  how long work waits for a node that can hold its engine after the last one was lost
    """

    attempts: int = 3
    strikes: int = 2
    start_seconds: float = 900.0
    heartbeat_seconds: float = 60.0
    stop_seconds: float = 20.0
    drain_seconds: float = 30.0
    starting_per_node: int = 2
    node_seconds: float = 300.0


@dataclass(slots=True)
class State:
    """Owned by whoever calls `step`; `prefix` makes worker names unique among drivers of one store."""

    limits: Limits = Limits()
    prefix: str = "e"
    books: Books = field(default_factory=Books)
    drain_deadline: float | None = None
    paused: bool = False

    @property
    def hands_out(self) -> bool:
        """True while chunks may be handed to engines and engines be started."""
        return self.drain_deadline is None and not self.paused

    @property
    def finished(self) -> bool:
        """True when no process is left and every chunk is settled (or a drain gave the rest up)."""
        left = len(self.books.chunks) - self.books.committed - self.books.parked
        return not self.books.workers and (left == 0 or self.drain_deadline is not None)


def settled(status: Status) -> bool:
    """True when nothing more will happen to the chunk."""
    return status in (Status.COMMITTED, Status.PARKED)
