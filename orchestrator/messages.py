"""What the driver and its engine workers say to each other, and what the scheduler hears and asks for.

Plain frozen values: they cross process and Ray boundaries. Times are seconds of one monotonic clock, the driver's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.cells import Cell
from orchestrator.chunks import ChunkId, Work
from workers.api import Counters, EngineSpec, Provenance

NOTHING = Counters(waiting=0, running=0, generated_tokens=0, finished=0, preemptions=0)

OVERFILL = 1.1
"""An engine is kept at this multiple of max_num_seqs rows, running plus waiting."""


def capacity(spec: EngineSpec) -> int:
    """Rows that an engine holds, running plus waiting."""
    return math.ceil(OVERFILL * spec.max_num_seqs)


class Cause(StrEnum):
    """Why a worker gave a chunk back without a commit."""

    RETURNED = "returned"
    """Never started (withdrawn or drained): nobody's fault, no attempt is counted."""
    RETRYABLE = "retryable"
    """May succeed elsewhere or later."""
    FATAL = "fatal"
    """Trying again cannot help."""
    INVALID = "invalid"
    """The rows exist, but their policy did not evict as the formula says; they are never committed."""


class WorkerState(StrEnum):
    """Life of an engine worker as it tells it."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Assignment:
    """A chunk for a worker, with the cell its rows are labelled by."""

    cell: Cell
    work: Work


@dataclass(frozen=True, slots=True)
class Order:
    """One message to a worker. `drain`: hand back what has not started, finish the rest, take nothing more."""

    assign: tuple[Assignment, ...] = ()
    withdraw: tuple[ChunkId, ...] = ()
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """A chunk given back without a commit. `attempt` tells a late message from a current one."""

    chunk: ChunkId
    attempt: int
    cause: Cause
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """One message from a worker; `committed` and `released` hold what happened since the previous one.

    seq        grows by one with each report of a worker
    accepted   assignments received since start
    commit_seconds  how long each of `committed` took to write
    wants      rows that would still fit: capacity - rows held
    unstarted  chunks held of which no row has started
    detail     what the engine is doing, or why it failed
    fatal      with state FAILED: starting this engine again cannot help
    busy       with state FAILED: its GPUs that other processes hold, which is the engine's fault in no way
    """

    worker: str
    seq: int
    state: WorkerState
    accepted: int = 0
    wants: int = 0
    committed: tuple[ChunkId, ...] = ()
    commit_seconds: tuple[float, ...] = ()
    released: tuple[Release, ...] = ()
    unstarted: tuple[ChunkId, ...] = ()
    counters: Counters = NOTHING
    detail: str = ""
    fatal: bool = False
    busy: tuple[str, ...] = ()
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A chunk as the scheduler sees it.

    expected_tokens  of one row; longest first
    block_tokens     the same of the longest arm of this block: blocks come in this order, arms of one side by side
    group            arms of one group are compared with each other and run interleaved; `arm` is the place in it
    attempts         attempts already on record; numbers of new ones continue from here
    """

    chunk: ChunkId
    engine: EngineSpec
    rows: int
    expected_tokens: float
    group: str
    arm: int
    attempts: int = 0
    block_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Added:
    """Event: chunks to run (at start, or when a cell grows)."""

    chunks: tuple[Planned, ...]
    now: float


@dataclass(frozen=True, slots=True)
class NodeUp:
    """Event: a machine with `units` places; an engine takes TP x PP of them (GPUs; on a CPU machine its one place)."""

    node: str
    units: int
    now: float


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Event: a machine and everything on it is gone."""

    node: str
    now: float


@dataclass(frozen=True, slots=True)
class Reported:
    """Event: a worker's report arrived."""

    report: Report
    now: float


@dataclass(frozen=True, slots=True)
class Found:
    """Event: these chunks are in the store, whoever put them there."""

    chunks: tuple[ChunkId, ...]
    now: float


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """Event: the process is dead and its place is free. `unplaced`: it never had the place that it was started for."""

    worker: str
    reason: str
    now: float
    unplaced: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Event: time passed; deadlines are judged here and nowhere else."""

    now: float


@dataclass(frozen=True, slots=True)
class Drain:
    """Event: assign nothing more, let started chunks finish until the drain deadline."""

    now: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Event: hand out nothing more until Resume; what has started finishes, then engines end and free their places."""

    now: float


@dataclass(frozen=True, slots=True)
class Resume:
    """Event: go on after Pause."""

    now: float


@dataclass(frozen=True, slots=True)
class Retry:
    """Event: give parked chunks, and engines that could not start, all their attempts again."""

    now: float


Event = Added | NodeUp | NodeLost | Reported | Found | WorkerGone | Tick | Drain | Pause | Resume | Retry


@dataclass(frozen=True, slots=True)
class Seat:
    """Places on one node that an engine takes."""

    node: str
    places: int


@dataclass(frozen=True, slots=True)
class StartEngine:
    """Action: start an engine worker on a node; `seats` has more than one entry where the engine spans nodes."""

    worker: str
    node: str
    engine: EngineSpec
    seats: tuple[Seat, ...] = ()


@dataclass(frozen=True, slots=True)
class Assign:
    """Action: hand these chunks, with their attempt numbers, to a worker."""

    worker: str
    chunks: tuple[tuple[ChunkId, int], ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Action: ask a worker to give back chunks that it has not started."""

    worker: str
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True)
class AskDrain:
    """Action: tell a worker to drain."""

    worker: str


@dataclass(frozen=True, slots=True)
class StopEngine:
    """Action: end a worker; `hard` kills. Its place is free when WorkerGone arrives."""

    worker: str
    hard: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Action: put on record that an attempt ended without a commit; `parked`: no more will follow."""

    chunk: ChunkId
    attempt: int
    cause: Cause
    reason: str
    worker: str
    parked: bool


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Action: tell the user that a node gets no more engines."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """Action: keep a worker without an engine, so that nothing else is given its GPUs; it is forgotten otherwise."""

    worker: str
    node: str
    gpus: tuple[str, ...]
    reason: str


Action = StartEngine | Assign | Withdraw | AskDrain | StopEngine | Failed | Quarantine | SetAside
