"""The driver of one campaign: carries events to the scheduler and its actions to a backend. Disposable at any moment.

Nothing that resuming needs lives here: rows are in the store, and a driver that starts again plans what is missing.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrator import failures
from orchestrator.backend import ENGINES, Backend, Launch, Lost
from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.environment import installation
from orchestrator.fleet import gather, usable
from orchestrator.grading import Graded, GradeQueue, grader_key
from orchestrator.grid import Plan
from orchestrator.ledger import Limits, State, Status
from orchestrator.lengths import NOTHING_LEARNED, Lengths
from orchestrator.messages import (
    Action,
    Added,
    AskDrain,
    Assign,
    Assignment,
    Drain,
    Event,
    Failed,
    Found,
    NodeLost,
    NodeUp,
    Order,
    Pause,
    Planned,
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
)
from orchestrator.observers import Observer
from orchestrator.progress import Rate, Snapshot, View
from orchestrator.scheduler import step
from orchestrator.snapshots import Counts, snapshot
from orchestrator.store.campaign import Campaign, Control
from orchestrator.store.writer import Store
from orchestrator.tasks.base import Problem, Task
from orchestrator.work_list import work_list
from workers.api import EngineSpec

_POLL_SECONDS = 0.25
_LOOK_SECONDS = 2.0
_GRADE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a driver runs.

    prefix     of worker names, unique among the drivers of a store
    threads    CPU threads of one engine; 0 leaves them to the engine
    create     as Launch.create
    gpu_hours  places x hours of engines after which the campaign drains; None is no limit
    node_seconds  how long to wait at the start for nodes that the engines need
    """

    prefix: str
    threads: int = 0
    stuck_seconds: float = 300.0
    create: str = ENGINES
    gpu_hours: float | None = None
    node_seconds: float = 0.0
    limits: Limits = field(default_factory=Limits)

    @property
    def name(self) -> str:
        """The driver's name in the store."""
        return self.prefix.rstrip("-")


@dataclass(slots=True)
class Interrupt:
    """Counts requests to stop: the first drains, the second stops at once. Set from signal handlers."""

    count: int = 0

    def request(self, *_: object) -> None:
        """For signal.signal."""
        self.count += 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a campaign ended. `stopped` says why it ended before its work did; empty when it did not."""

    rows_made: int
    parked: Mapping[ChunkId, str]
    unfinished: int
    grade_errors: tuple[str, ...]
    stopped: str
    tokens: int
    engine_starts: int


class Driver:
    """Runs the missing chunks of a plan and grades what is committed."""

    def __init__(
        self,
        plan: Plan,
        store: Store,
        backend: Backend,
        settings: Settings,
        observers: Sequence[Observer] = (),
        grown: Callable[[Plan], Plan] = lambda plan: plan,
        lengths: Lengths = NOTHING_LEARNED,
    ) -> None:
        """`grown` gives the plan after another look at the rows, where their number depends on what they show;
        `lengths` is what they say of how long answers are, for longest first."""
        self._lengths = lengths
        self._observers, self._grown = observers, grown
        self._judged = -1
        self._plan, self._store, self._backend, self._settings = plan, store, backend, settings
        self._campaign: Campaign = store.campaign(plan.job.name)
        self._state = State(settings.limits, settings.prefix)
        self._grading = GradeQueue(store.paths.place, self._locate)
        self._reports: dict[str, Report] = {}
        self._rate = Rate()
        self._failures = 0
        self._stopped = ""
        self._looked = self._turned = time.monotonic()
        self._place_seconds = 0.0
        self._gpus_only = False

    def run(self, view: View, interrupt: Interrupt) -> Outcome:
        """Until everything is committed or parked and graded, or until it is told to stop."""
        self._view = view
        self._show_life()
        try:
            return self._run(interrupt)
        finally:
            with suppress(OSError):
                self._campaign.driver_ended(self._settings.name)

    def _run(self, interrupt: Interrupt) -> Outcome:
        done = self._store.committed(planned.cell_id for planned in self._plan.cells)
        self._grading.add(ungraded(self._store, self._plan, done))
        missing = self._missing(done)
        if missing:
            engines = tuple(dict.fromkeys(planned.engine for planned in missing))
            wanted, settings = self._plan.job.resources.gpu, self._settings
            gather(self._backend, engines, wanted, settings.node_seconds, self._view.say, lambda: interrupt.count > 0)
        self._look_at_nodes()
        self._tell(Added(missing, self._now()))
        while True:
            while not self._state.finished and interrupt.count < 2:
                self._turn(interrupt)
            deadline = self._now() + _GRADE_SECONDS
            while self._grading.left and interrupt.count < 2 and self._now() < deadline:
                self._turn(interrupt)
            if self._stopped or interrupt.count or not self._grow():
                return self._outcome(interrupt)

    def _now(self) -> float:
        return time.monotonic()

    def _missing(self, done: set[ChunkId]) -> tuple[Planned, ...]:
        records = self._campaign.attempts()
        numbers = ((ChunkId(r["cell_id"], r["sample"], r["block"]), r["attempt"]) for r in records)
        return work_list(self._plan, done, numbers, self._lengths)

    def _turn(self, interrupt: Interrupt) -> None:
        for message in self._backend.poll(_POLL_SECONDS):
            match message:
                case Report():
                    self._hear(message)
                case Lost():
                    self._mourn(message)
                case Graded():
                    self._grading.finish(message)
        now = self._now()
        self._tell(Tick(now))
        self._place_seconds += (now - self._turned) * sum(w.line.units for w in self._state.books.workers.values())
        self._turned = now
        if interrupt.count:
            self._stop("interrupted")
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._look_around()
        while (work := self._grading.take()) is not None:
            self._backend.grade(work)
        self._view.show(self._snapshot())

    def _hear(self, report: Report) -> None:
        self._reports[report.worker] = report
        self._rate.add(report.worker, report.counters.generated_tokens, self._now())
        self._grading.add(report.committed)
        self._tell(Reported(report, self._now()))

    def _mourn(self, lost: Lost) -> None:
        """A process ended. What it committed without telling counts; what it said of its end is the better reason."""
        worker = self._state.books.workers.get(lost.worker)
        found = tuple(chunk for chunk in (worker.owned if worker else ()) if self._store.holds(chunk))
        if found:
            self._grading.add(found)
            self._tell(Found(found, self._now()))
        self._tell(WorkerGone(lost.worker, failures.last_words(self._campaign, lost), self._now(), lost.unplaced))
        self._reports.pop(lost.worker, None)
        with suppress(OSError):
            self._campaign.retire(lost.worker)

    def _look_around(self) -> None:
        self._look_at_nodes()
        self._obey(self._campaign.control())
        self._show_life()
        self._grow()
        budget = self._settings.gpu_hours
        if budget is not None and self._place_seconds > budget * 3600:
            self._stop(f"the budget of {budget:g} GPU-hours is spent")

    def _obey(self, control: Control) -> None:
        if control is Control.CANCEL:
            self._stop("cancelled")
            return
        if (control is Control.PAUSE) is not self._state.paused:
            now = self._now()
            self._tell(Resume(now) if self._state.paused else Pause(now))
            self._view.say("paused: finishing what has started" if self._state.paused else "going on")
        if control is Control.RETRY:
            self._tell(Retry(self._now()))
            with suppress(OSError):
                self._campaign.ask(Control.RUN)

    def _grow(self) -> bool:
        """Hand in what the results so far call for; True if that is more than before."""
        committed = self._state.books.committed
        if self._grading.left or committed == self._judged:
            return False
        self._judged = committed
        plan = self._grown(self._plan)
        if plan is self._plan or plan.cells == self._plan.cells:
            return False
        self._plan = plan
        done = self._store.committed(planned.cell_id for planned in plan.cells)
        self._tell(Added(self._missing(done), self._now()))
        self._view.say(f"more samples where intervals are still wide: {self._state.books.rows[Status.PENDING]:,} rows")
        return True

    def _show_life(self) -> None:
        rows = self._state.books.rows
        state = "stopping" if self._stopped else "paused" if self._state.paused else "running"
        left = rows[Status.PENDING] + rows[Status.OWNED]
        facts = {"pid": os.getpid(), "host": platform.node(), "state": state, "rows_left": left}
        with suppress(OSError):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._campaign.driver_beat(self._settings.name, {**facts, "updated_at": now})

    def _look_at_nodes(self) -> None:
        machines = self._backend.machines()
        self._gpus_only |= any(machine.gpu is not None for machine in machines)
        up = {m.name: m for m in usable(machines, self._plan.job.resources.gpu, self._gpus_only)}
        for name in self._state.books.nodes.keys() - up.keys():
            self._tell(NodeLost(name, self._now()))
        for name in up.keys() - self._state.books.nodes.keys():
            self._tell(NodeUp(name, up[name].units, self._now()))

    def _stop(self, why: str) -> None:
        if not self._stopped:
            self._stopped = why
            self._view.say(f"{why}: finishing what has started, at most {self._settings.limits.drain_seconds:.0f} s")
            self._tell(Drain(self._now()))

    def _tell(self, event: Event) -> None:
        self._state, actions = step(self._state, event)
        for action in actions:
            self._carry_out(action)
        for observer in self._observers:
            observer.saw(event, actions, self._state.books)
        for sentence in failures.sentences(actions):
            self._view.say(sentence)

    def _carry_out(self, action: Action) -> None:
        match action:
            case StartEngine(worker, node, engine, seats):
                self._backend.start(self._launch(worker, engine), node, seats)
            case Assign(worker, chunks):
                assignments = (
                    Assignment(self._plan.cell(chunk.cell_id).cell, self._plan.build(chunk, attempt))
                    for chunk, attempt in chunks
                )
                self._backend.send(worker, Order(assign=tuple(assignments)))
            case Withdraw(worker, withdrawn):
                self._backend.send(worker, Order(withdraw=withdrawn))
            case AskDrain(worker):
                self._backend.send(worker, Order(drain=True))
            case StopEngine(worker, hard, _):
                self._backend.stop(worker, hard)
            case Failed():
                self._record(action)
            case SetAside(worker):
                self._backend.set_aside(worker)

    def _launch(self, worker: str, engine: EngineSpec) -> Launch:
        settings = self._settings
        return Launch(
            worker=worker,
            spec=engine,
            store=self._store.paths.place,
            campaign=self._plan.job.name,
            log=str(self._campaign.log(worker).resolve()),
            threads=settings.threads,
            stuck_seconds=settings.stuck_seconds,
            create=settings.create,
            installation=installation(),
        )

    def _record(self, failed: Failed) -> None:
        self._failures += 1
        facts = {
            "cause": failed.cause.value,
            "reason": failed.reason,
            "engine_id": failed.worker,
            "parked": failed.parked,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        with suppress(OSError):  # on a full disk the reason is still in the summary
            self._campaign.record_attempt(failed.chunk, failed.attempt, facts)

    def _locate(self, chunk: ChunkId) -> tuple[Task, tuple[Problem, ...]]:
        cell = self._plan.cell(chunk.cell_id).cell
        problems = self._plan.prompts[cell.model, cell.task].problems
        return self._plan.tasks[cell.task], problems[chunk.block * BLOCK : (chunk.block + 1) * BLOCK]

    def _snapshot(self) -> Snapshot:
        planned = sum(cell.n_problems * cell.samples_max for cell in self._plan.cells)
        return snapshot(
            self._state,
            self._reports,
            self._rate,
            Counts(planned, self._failures, self._grading.left),
            self._now(),
        )

    def _outcome(self, interrupt: Interrupt) -> Outcome:
        books = self._state.books
        if interrupt.count and not self._stopped:
            self._stopped = "interrupted"
        parked = {c: entry.reason for c, entry in books.chunks.items() if entry.status is Status.PARKED}
        errors = list(self._grading.errors)
        if self._grading.left and not self._stopped:
            errors.append(f"grading did not end within {_GRADE_SECONDS:.0f} s; run the job again to go on with it")
        return Outcome(
            rows_made=books.rows[Status.COMMITTED],
            parked=parked,
            unfinished=len(books.chunks) - books.committed - books.parked,
            grade_errors=tuple(errors),
            stopped=self._stopped,
            tokens=self._rate.total,
            engine_starts=books.started,
        )


def ungraded(store: Store, plan: Plan, done: Iterable[ChunkId]) -> list[ChunkId]:
    """Committed chunks of the plan without grades of their task's present grader, in the order given."""
    graded = {
        chunk
        for ref, task in plan.tasks.items()
        for chunk in store.graded(grader_key(task), (p.cell_id for p in plan.cells if p.cell.task == ref))
    }
    return [chunk for chunk in done if chunk not in graded]
