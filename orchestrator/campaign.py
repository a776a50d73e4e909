"""A campaign: a job applied to a store. Submitting it again is how it resumes.

What is missing is planned from the store alone, so a driver may be killed at any moment, started again with a grown
job, or run twice at once: rows are committed once whatever happens.
"""

from __future__ import annotations

import platform
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator import adaptive, history, planning
from orchestrator.backend import ENGINES, Backend
from orchestrator.cells import TaskRef
from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.driver import Driver, Interrupt, Outcome, Settings, ungraded
from orchestrator.environment import environment, usable_cores
from orchestrator.errors import UserError
from orchestrator.grid import Plan, expand
from orchestrator.history import History
from orchestrator.ledger import Limits
from orchestrator.observers import Observer, spans
from orchestrator.observers.crashes import CrashReports
from orchestrator.observers.event_log import EventLog
from orchestrator.observers.metrics import Metrics
from orchestrator.progress import View, duration, view_for
from orchestrator.scaling import scaled
from orchestrator.spec import JobSpec
from orchestrator.store.campaign import Campaign, Control
from orchestrator.store.rows import plan_row
from orchestrator.store.writer import Store

EXIT_INCOMPLETE = 1
EXIT_STOPPED = 130

_FORGOTTEN = timedelta(minutes=10)
_ALIVE = timedelta(seconds=15)
_DIFFERENCES = 12


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is run, apart from what it asks for.

    stuck_seconds  without a token after which an engine is replaced
    create         as Launch.create
    scale          share of the job to try on the embedded model; None runs all of it
    metrics        host and port where Prometheus is answered
    limits         counts and deadlines of the scheduler
    node_seconds   how long to wait for nodes that the job's engines need
    part           the job is a part of something larger: its report is not what comes next
    """

    stuck_seconds: float = 300.0
    create: str = ENGINES
    scale: float | None = None
    metrics: tuple[str, int] | None = None
    limits: Limits = field(default_factory=Limits)
    node_seconds: float = 0.0
    part: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job expanded and compared with its store; nothing has been started."""

    job: JobSpec
    plan: Plan
    store: Store
    committed: frozenset[ChunkId]
    known: History = field(default_factory=History)

    @property
    def missing(self) -> tuple[ChunkId, ...]:
        """Chunks to run."""
        return self.plan.missing(self.committed)

    @property
    def ungraded(self) -> list[ChunkId]:
        """Committed chunks to grade."""
        return ungraded(self.store, self.plan, self.committed)

    @property
    def campaign(self) -> Campaign:
        """The campaign's files."""
        return self.store.campaign(self.job.name)


def prepare(path: Path, store: Path | None = None, scale: float | None = None) -> Prepared:
    """Read and expand a job, open its store. Raises UserError for every mistake that can be known before a start."""
    job = JobSpec.load(path)
    if scale is not None:
        job = scaled(job, scale)
    plan = expand(job)
    opened = Store.open(store or job.execution.store)
    plan = adaptive.decided(plan, opened.paths.root)
    committed = frozenset(opened.committed(planned.cell_id for planned in plan.cells))
    _refuse_changed_tasks(plan, opened, committed)
    for task in plan.tasks.values():
        if hasattr(task, "ready"):
            task.ready()
    known = history.read(opened.paths.root, plan)
    planning.refuse_small_budget(plan, planning.forecast(plan, known, opened.paths.name))
    return Prepared(job, plan, opened, committed, known)


def submit(prepared: Prepared) -> list[str]:
    """Record the job in the store; returns what changed since it was last submitted, one line each."""
    campaign, plan = prepared.campaign, prepared.plan
    resolved = dict(prepared.job.resolved())
    changes = differences(campaign.resolved(), resolved)
    if changes:
        _refuse_a_second_job(campaign, changes)
    known = set(campaign.plan()["cell_id"].to_pylist())
    rows = plan_rows(plan)
    try:
        campaign.submit(prepared.job.source.text, resolved, environment(), rows)
        campaign.ask(Control.RUN)
        _forget_the_dead(campaign)
    except OSError as error:
        raise UserError(f"the campaign cannot be recorded in {campaign.directory}: {error}") from error
    if known and changes:
        now = {row["cell_id"] for row in rows}
        changes.append(
            f"{len(now - known)} new cells, {len(now & known)} as before, "
            f"{len(known - now)} no longer in the job (their rows stay in the store)"
        )
    return changes if known else []


def _refuse_a_second_job(campaign: Campaign, changes: Sequence[str]) -> None:
    """One campaign, two jobs at once: each driver would run its own, and the plan on record would be the later one's.

    Raises UserError while a driver of the campaign runs; the same job twice is harmless.
    """
    limit = datetime.now(UTC) - _ALIVE
    for facts in campaign.drivers():
        with suppress(ValueError, KeyError, TypeError):
            here = facts["host"] == platform.node()
            gone = here and not Path(f"/proc/{facts['pid']}").exists()
            if not gone and datetime.fromisoformat(facts["updated_at"]) >= limit:
                where = f"pid {facts.get('pid')} on {facts.get('host')}"
                raise UserError(
                    f"campaign '{campaign.directory.name}' is running ({where}) as another job: {'; '.join(changes)}. "
                    "Give this job a name of its own, or stop the other with evictbench cancel and run this one then."
                )


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """Planned cells as the store keeps them."""
    return [plan_row(p.cell, p.n_problems, p.samples_min, p.samples_max, float(p.expected_tokens)) for p in plan.cells]


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`arms.keep[0]: 264 -> 200` for every key path whose value differs."""
    before, after = dict(_flat(old)), dict(_flat(new))
    changed = [key for key in {**after, **before} if before.get(key) != after.get(key)]
    lines = [f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}" for key in changed]
    more = len(lines) - _DIFFERENCES
    return lines if more <= 0 else [*lines[:_DIFFERENCES], f"and {more} more"]


def run(
    path: Path,
    console: Console,
    connect: Callable[[], Backend],
    store: Path | None = None,
    options: Options | None = None,
) -> int:
    """Run what is missing of a job; returns the exit status. `connect` is called only if there is work.

    0 everything is committed and graded; 1 chunks are parked, missing or ungraded; 130 stopped by a signal or cancel.
    """
    options = options or Options()
    prepared = prepare(path, store, options.scale)
    for change in submit(prepared):
        _say(console, f"changed: {change}")
    for note in prepared.plan.notes:
        _say(console, f"note: {note}")
    missing, to_grade = len(prepared.missing), len(prepared.ungraded)
    total = sum(cell.n_problems * cell.samples_max for cell in prepared.plan.cells)
    root = prepared.store.paths.name
    if not missing and not to_grade:
        _say(console, f"{prepared.job.name}: all {total:,} rows are in {root} and graded; nothing to run.")
        return 0
    size = f"{len(prepared.plan.cells)} cells, {total:,} rows"
    _say(console, f"{prepared.job.name}: {size}, {len(prepared.committed)} chunks in {root}, {missing} to run.")
    started = time.monotonic()
    outcome = _drive(prepared, console, connect, options)
    _conclude(prepared, outcome, time.monotonic() - started, console, part=options.part)
    if outcome.stopped:
        return EXIT_STOPPED
    return EXIT_INCOMPLETE if outcome.parked or outcome.unfinished or outcome.grade_errors else 0


def _drive(prepared: Prepared, console: Console, connect: Callable[[], Backend], options: Options) -> Outcome:
    interrupt = Interrupt()
    settings = Settings(
        prefix=f"e{uuid.uuid4().hex[:4]}-",
        threads=usable_cores(),
        stuck_seconds=options.stuck_seconds,
        create=options.create,
        limits=options.limits,
        node_seconds=options.node_seconds,
        gpu_hours=prepared.job.execution.hours(prepared.job.resources.gpu),
    )
    with signals(interrupt):
        backend = connect()
        try:
            # Ray takes SIGTERM for itself when it starts.
            with signals(interrupt), view_for(console) as view:
                observers = _observers(prepared, settings.name, view, options.metrics)
                grown = partial(_grown, prepared)
                lengths = prepared.known.lengths
                driver = Driver(prepared.plan, prepared.store, backend, settings, observers, grown, lengths)
                return driver.run(view, interrupt)
        finally:
            backend.close()


def _grown(prepared: Prepared, plan: Plan) -> Plan:
    """The plan after another look at the rows; recorded if it asks for more samples than before."""
    after = adaptive.decided(plan, prepared.store.paths.root)
    if after.cells != plan.cells:
        with suppress(OSError):  # the plan in the store lags, and the next look records it
            prepared.campaign.replan(plan_rows(after))
    return after


def _observers(prepared: Prepared, driver: str, view: View, metrics: tuple[str, int] | None) -> tuple[Observer, ...]:
    campaign, plan = prepared.campaign, prepared.plan
    log = EventLog(campaign.directory / "events.jsonl", prepared.job.name, driver)
    crashes = CrashReports(campaign.directory / "crashes", campaign.log, view.say)
    collector = spans.tracer()
    traced = () if collector is None else (spans.Spans(prepared.job.name, collector),)
    if metrics is None:
        return log, crashes, *traced
    meter = Metrics(prepared.job.name, prepared.store.paths, lambda cell_id: plan.cell(cell_id).cell)
    meter.serve(*metrics)
    return log, crashes, *traced, meter


@contextmanager
def signals(interrupt: Interrupt) -> Iterator[None]:
    """Ctrl-C and SIGTERM are requests to stop as long as this lasts."""
    before = {number: signal.signal(number, interrupt.request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conclude(prepared: Prepared, outcome: Outcome, seconds: float, console: Console, *, part: bool) -> None:
    say = partial(_say, console)
    rate = outcome.tokens / seconds if seconds else 0.0
    say(
        f"{outcome.rows_made:,} rows made in {duration(seconds)}, {outcome.tokens:,} tokens "
        f"({rate:,.0f} tokens/s, starts included), {outcome.engine_starts} engine starts."
    )
    for line in parked_lines(prepared.plan, outcome.parked):
        say(f"parked: {line}")
    if outcome.parked:
        say(f"Engine output: {prepared.campaign.directory / 'logs'}. Run the same command to try parked chunks again.")
    for error in outcome.grade_errors:
        say(f"not graded: {error}")
    if outcome.stopped:
        say(f"Stopped ({outcome.stopped}) with {outcome.unfinished} chunks to run. The same command goes on from here.")
    elif not outcome.parked and not outcome.grade_errors:
        small = f" --scale {prepared.job.scale.share:g}" if prepared.job.scale else ""
        after = "" if part else f" Next: evictbench report {prepared.job.source.path}{small}"
        say(f"Everything is committed and graded.{after}")


def parked_lines(plan: Plan, parked: Mapping[ChunkId, str]) -> list[str]:
    """One line per cell and reason: `LABEL: 13 chunks (104 rows): reason`."""
    counts = Counter((chunk.cell_id, reason) for chunk, reason in parked.items())
    rows: Counter[tuple[str, str]] = Counter()
    for chunk, reason in parked.items():
        rows[chunk.cell_id, reason] += min(BLOCK, plan.cell(chunk.cell_id).n_problems - chunk.block * BLOCK)
    return [
        f"{plan.cell(cell_id).cell.label}: {count} chunk{'s' * (count != 1)} ({rows[cell_id, reason]} rows): {reason}"
        for (cell_id, reason), count in counts.items()
    ]


def _refuse_changed_tasks(plan: Plan, store: Store, committed: Iterable[ChunkId]) -> None:
    """A task whose file may grow recognises its stored problems. Raises UserError where an earlier one has changed."""
    stored: dict[TaskRef, dict[int, str]] = {}
    for chunk in committed:
        ref = plan.cell(chunk.cell_id).cell.task
        if hasattr(plan.tasks[ref], "refuse_changes"):
            rows = store.rows(chunk, ("problem_index", "problem_id"))
            stored.setdefault(ref, {}).update((row["problem_index"], row["problem_id"]) for row in rows)
    for ref, problems in stored.items():
        plan.tasks[ref].refuse_changes(problems)  # type: ignore[attr-defined]


def _forget_the_dead(campaign: Campaign) -> None:
    """A driver that was killed could not sign off, nor retire its engines."""
    limit = datetime.now(UTC) - _FORGOTTEN
    for facts in [*campaign.live(), *campaign.drivers()]:
        with suppress(ValueError, KeyError, TypeError):
            if datetime.fromisoformat(facts["updated_at"]) < limit:
                if "driver" in facts:
                    campaign.driver_ended(facts["driver"])
                else:
                    campaign.retire(facts["engine_id"])


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, item in enumerate(value):
            yield from _flat(item, f"{place}[{index}]")
    elif value is not None:  # null is the same as leaving the key out
        yield place, value
