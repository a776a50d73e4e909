"""The life of an engine worker, whatever starts it: owns one engine and a store, knows no cluster.

Three threads. The engine thread alone touches the engine: it takes orders, steps while anything is open, and gathers
finished generations by chunk. A committer writes complete chunks, so that the engine never waits for a disk. A
watchdog beats, and ends the process hard when no token appears for too long: a death that everybody can see.
The caller's side is `order` and `report`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from orchestrator.chunks import ChunkId, Row, Work
from orchestrator.environment import git_revision
from orchestrator.messages import NOTHING, Assignment, Cause, Order, Release, Report, WorkerState, capacity
from orchestrator.store.rows import generation_row
from workers.api import Engine, EngineSpec, Generation, Provenance
from workers.errors import EngineError, Fatal
from workers.gpus import GpuBusy

EXIT_STUCK = 70
"""Exit status of a worker whose engine made no token for too long."""

_COMMIT_TRIES = 3
_BEAT_SECONDS = 2.0
_REPORT_GAP_SECONDS = 0.05


class ChunkStore(Protocol):
    """What a worker needs of orchestrator.store.writer.Store."""

    def commit_chunk(self, work: Work, rows: list[Mapping[str, Any]]) -> object:
        """Raises ValueError for rows that are not the chunk's, OSError where the disk fails."""


@dataclass(slots=True)
class _Open:
    """A chunk in the engine; generations arrive by request id."""

    assignment: Assignment
    rows: dict[str, Row]
    submitted_at: datetime
    done: dict[str, tuple[Generation, datetime]] = field(default_factory=dict)


class WorkerLoop:
    """One engine, from load to close. `beat` receives JSON-ready facts every two seconds and must not raise.

    gpus  physical ids of the GPUs that the engine was given, recorded with every row
    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        store: ChunkStore,
        beat: Callable[[Mapping[str, Any]], None],
        stuck_seconds: float = 300.0,
        gpus: tuple[str, ...] = (),
    ) -> None:
        self._gpus = gpus
        self._name, self._spec, self._store, self._beat, self._stuck = name, spec, store, beat, stuck_seconds
        self._changed = threading.Condition()
        self._beat_now = threading.Event()
        self._committer = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._state, self._detail, self._fatal = WorkerState.LOADING, "loading model", False
        self._busy: tuple[str, ...] = ()
        self._provenance: Provenance | None = None
        self._orders: deque[Order] = deque()
        self._open: dict[ChunkId, _Open] = {}
        self._chunk_of: dict[str, ChunkId] = {}
        self._committed: list[tuple[ChunkId, float]] = []
        self._released: list[Release] = []
        self._unstarted: tuple[ChunkId, ...] = ()
        self._counters = NOTHING
        self._progressed = time.monotonic()
        self._accepted = self._seq = 0
        self._draining = self._closing = self._news = False

    def start(self, create: Callable[[EngineSpec], Engine]) -> None:
        """Begin loading; returns at once. What `create` or the engine raises is reported, not raised."""
        self._thread = threading.Thread(target=self._live, args=(create,), name="engine", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def order(self, order: Order) -> None:
        """Take an order; the engine thread carries it out between two steps."""
        with self._changed:
            self._orders.append(order)
            self._changed.notify_all()

    def report(self, wait: float) -> Report:
        """What happened since the last report; waits up to `wait` seconds for something to tell."""
        time.sleep(_REPORT_GAP_SECONDS)
        with self._changed:
            self._changed.wait_for(lambda: self._news, timeout=wait)
            self._seq += 1
            report = Report(
                worker=self._name,
                seq=self._seq,
                state=self._state,
                accepted=self._accepted,
                wants=self._wants(),
                committed=tuple(chunk for chunk, _ in self._committed),
                commit_seconds=tuple(seconds for _, seconds in self._committed),
                released=tuple(self._released),
                unstarted=self._unstarted,
                counters=self._counters,
                detail=self._detail,
                fatal=self._fatal,
                busy=self._busy,
                provenance=self._provenance,
            )
            self._committed, self._released, self._news = [], [], False
        return report

    def close(self, seconds: float = 10.0) -> None:
        """Stop stepping, let begun commits end, close the engine; what is open is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        self._committer.shutdown(wait=True)

    def _wants(self) -> int:
        if self._draining or self._state is not WorkerState.READY:
            return 0
        return capacity(self._spec) - sum(len(chunk.rows) - len(chunk.done) for chunk in self._open.values())

    def _live(self, create: Callable[[EngineSpec], Engine]) -> None:
        engine: Engine | None = None
        try:
            engine = create(self._spec)
            started = engine.start()
            # Rows name the worker, as live files and logs do, and the code of the worker's machine.
            extra = {"git_revision": git_revision(), "gpus": self._gpus, **started.extra}
            provenance = replace(started, engine_id=self._name, extra=extra)
            with self._changed:
                self._provenance, self._state, self._detail = provenance, WorkerState.READY, "running"
                self._tell()
            self._beat_now.set()
            while not self._closing:
                self._carry_out_orders(engine)
                if not self._open:
                    self._rest()
                    continue
                self._keep_generations(engine, engine.step())
                self._note_progress(engine)
        except Exception as error:  # whatever an engine raises must reach the user, with its reason
            with self._changed:
                self._state, self._fatal = WorkerState.FAILED, isinstance(error, Fatal)
                self._busy = error.gpus if isinstance(error, GpuBusy) else ()
                self._detail = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
                self._tell()
        finally:
            if engine is not None:
                with suppress(Exception):
                    engine.close()

    def _tell(self) -> None:
        """Caller holds the lock."""
        self._news = True
        self._changed.notify_all()

    def _rest(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._closing, timeout=1.0)
        self._progressed = time.monotonic()

    def _note_progress(self, engine: Engine) -> None:
        counters = engine.counters()
        if (counters.generated_tokens, counters.finished) != (
            self._counters.generated_tokens,
            self._counters.finished,
        ):
            self._progressed = time.monotonic()
        with self._changed:
            self._counters = counters
            self._unstarted = self._find_unstarted(counters.waiting)

    def _find_unstarted(self, waiting: int) -> tuple[ChunkId, ...]:
        """Newest chunks that lie wholly among the `waiting` requests: engines admit in order of submission."""
        found: list[ChunkId] = []
        for chunk, opened in reversed(self._open.items()):
            waiting -= len(opened.rows) - len(opened.done)
            if waiting < 0:
                break
            if not opened.done:
                found.append(chunk)
        return tuple(found)

    def _carry_out_orders(self, engine: Engine) -> None:
        while self._orders:
            order = self._orders.popleft()
            for assignment in order.assign:
                self._submit(engine, assignment)
            if order.drain:
                self._draining = True
            for chunk in self._unstarted if order.drain else order.withdraw:
                if chunk in self._unstarted and chunk in self._open:
                    self._give_up(engine, chunk, Cause.RETURNED, "")
            self._note_progress(engine)

    def _submit(self, engine: Engine, assignment: Assignment) -> None:
        work = assignment.work
        rows = {row.request.request_id: row for row in work.rows}
        with self._changed:
            self._accepted += 1
            self._open[work.chunk] = _Open(assignment, rows, datetime.now(UTC))
            self._chunk_of.update(dict.fromkeys(rows, work.chunk))
        try:
            engine.submit([row.request for row in work.rows])
        except Fatal as error:
            self._give_up(engine, work.chunk, Cause.FATAL, str(error))

    def _give_up(self, engine: Engine, chunk: ChunkId, cause: Cause, reason: str) -> None:
        opened = self._forget(chunk)
        engine.abort([request for request in opened.rows if request not in opened.done])
        self._release(opened.assignment.work, cause, reason)

    def _release(self, work: Work, cause: Cause, reason: str) -> None:
        with self._changed:
            self._released.append(Release(work.chunk, work.attempt, cause, reason))
            self._tell()

    def _forget(self, chunk: ChunkId) -> _Open:
        with self._changed:
            opened = self._open.pop(chunk)
            for request in opened.rows:
                del self._chunk_of[request]
        return opened

    def _keep_generations(self, engine: Engine, generations: list[Generation]) -> None:
        now = datetime.now(UTC)
        for generation in generations:
            chunk = self._chunk_of.get(generation.request_id)
            if chunk is None:
                continue  # aborted a moment ago
            opened = self._open[chunk]
            fault = judge(opened.rows[generation.request_id], generation)
            if fault is not None:
                self._give_up(engine, chunk, *fault)
                continue
            with self._changed:
                opened.done[generation.request_id] = (generation, now)
                self._tell()
            if len(opened.done) == len(opened.rows):
                self._committer.submit(self._commit, self._forget(chunk))

    def _commit(self, opened: _Open) -> None:
        work, cell, provenance = opened.assignment.work, opened.assignment.cell, self._provenance
        assert provenance is not None, "a chunk was done before the engine was ready"
        try:
            rows: list[Mapping[str, Any]] = [
                generation_row(cell, work, row, generation, provenance, opened.submitted_at, finished_at)
                for row, (generation, finished_at) in ((opened.rows[key], done) for key, done in opened.done.items())
            ]
            began = time.monotonic()
            self._write(work, rows)
        except OSError as error:
            # Making the rows again would not mend the disk.
            self._release(work, Cause.FATAL, f"the store cannot be written: {_named(error)}")
        except Exception as error:  # a row that fits no schema must park its chunk, not vanish with a thread
            self._release(work, Cause.FATAL, f"rows were refused by the store: {error}")
        else:
            with self._changed:
                self._committed.append((work.chunk, time.monotonic() - began))
                self._tell()

    def _write(self, work: Work, rows: list[Mapping[str, Any]]) -> None:
        for left in reversed(range(_COMMIT_TRIES)):
            try:
                self._store.commit_chunk(work, rows)
                return
            except OSError:
                if left == 0:
                    raise
                time.sleep(1.0)

    def _watch(self) -> None:
        while not self._closing:
            silent = time.monotonic() - self._progressed
            if self._state is WorkerState.READY and self._open and silent > self._stuck:
                self._state = WorkerState.FAILED
                self._detail = f"no token for {silent:.0f} s with {self._counters.running} requests running"
                self._beat(self._facts())
                os._exit(EXIT_STUCK)
            self._beat(self._facts())
            self._beat_now.wait(min(_BEAT_SECONDS, self._stuck / 4))
            self._beat_now.clear()

    def _facts(self) -> dict[str, Any]:
        provenance, counters = self._provenance, self._counters
        return {
            "state": self._state.value,
            "detail": self._detail,
            "kind": self._spec.kind,
            "model": self._spec.model,
            "keep_ceiling": self._spec.keep_ceiling,
            "interval": self._spec.interval,
            "device": provenance.device if provenance is not None else "",
            "gpus": list(self._gpus),
            "pid": os.getpid(),
            "running": counters.running,
            "waiting": counters.waiting,
            "generated_tokens": counters.generated_tokens,
            "finished": counters.finished,
            "preemptions": counters.preemptions,
            "open_chunks": len(self._open),
            "updated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }


def _named(error: OSError) -> str:
    # Arrow's own OSErrors have a number and a text of their own, and no strerror.
    return os.strerror(error.errno) if error.errno else str(error)


def judge(row: Row, generation: Generation) -> tuple[Cause, str] | None:
    """Why a generation must not become a row, or None.

    Attestation is equality of measured and computed events (contracts.md section 1). A preempted evicting request was
    prefilled again with tokens that its policy had dropped, so it is made anew from its prompt (section 3).
    """
    name, trace, eviction = row.request.request_id, generation.trace, row.request.eviction
    if eviction is not None and generation.preemptions:
        return Cause.RETRYABLE, f"{name}: preempted {generation.preemptions} times under eviction"
    if generation.finish_reason not in ("stop", "length"):
        return Cause.RETRYABLE, f"{name}: engine ended the request with '{generation.finish_reason}'"
    if eviction is None:
        if trace is not None and trace.events:
            return Cause.INVALID, f"{name}: policy not active as asked: {trace.events} events without eviction"
        return None
    if trace is None:
        return Cause.INVALID, f"{name}: policy not active: {eviction.policy} was asked for, and there is no trace"
    if trace.events != trace.expected_events:
        return (
            Cause.INVALID,
            f"{name}: policy not active as asked: {eviction.policy} made {trace.events} events, "
            f"the formula says {trace.expected_events}",
        )
    return None
