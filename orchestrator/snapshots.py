"""What a view shows of a running campaign, from the scheduler's books and the engines' last reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.ledger import Phase, State, Status, WorkerEntry
from orchestrator.messages import NOTHING, Report
from orchestrator.progress import EngineLine, Rate, Snapshot

_ROWS_TO_LEARN = 32


@dataclass(frozen=True, slots=True)
class Counts:
    """Of the whole campaign: rows planned, attempts that failed, committed chunks without grades."""

    rows_planned: int
    failures: int
    ungraded_chunks: int


def snapshot(state: State, reports: Mapping[str, Report], rate: Rate, counts: Counts, now: float) -> Snapshot:
    """Pure but for `rate`, which forgets what has left its window."""
    rows = state.books.rows
    left = rows[Status.PENDING] + rows[Status.OWNED]
    return Snapshot(
        rows_done=counts.rows_planned - left - rows[Status.PARKED],
        rows_planned=counts.rows_planned,
        tokens_per_second=rate.value(now),
        eta_seconds=_seconds_left(state, rate, now),
        engines=tuple(_engine_line(worker, reports.get(worker.name)) for worker in state.books.workers.values()),
        failures=counts.failures,
        parked_rows=rows[Status.PARKED],
        ungraded_chunks=counts.ungraded_chunks,
        draining=state.drain_deadline is not None,
        paused=state.paused,
    )


def _seconds_left(state: State, rate: Rate, now: float) -> float | None:
    """Rows left x tokens per row over the present rate; rows in an engine are taken as half done."""
    books, speed = state.books, rate.value(now)
    open_rows, pending = books.rows[Status.OWNED], books.rows[Status.PENDING]
    if not speed or open_rows + pending == 0:
        return None
    done = books.rows[Status.COMMITTED]
    expected = sum(line.pending_tokens for line in books.lines.values()) / pending if pending else 0.0
    mean = rate.total / (done + open_rows / 2) if done >= _ROWS_TO_LEARN or not pending else expected
    return (pending + open_rows / 2) * mean / speed


def _engine_line(worker: WorkerEntry, report: Report | None) -> EngineLine:
    spec = worker.line.engine
    state = "starting process" if report is None else report.detail
    if worker.phase in (Phase.STOPPING, Phase.DEAD):
        state = "ending"
    counters = report.counters if report is not None else NOTHING
    keep = f"keep <= {spec.keep_ceiling}, interval {spec.interval}" if spec.keep_ceiling else "no eviction"
    serves = f"{Path(spec.model).name} ({keep})"
    return EngineLine(worker.name, serves, state, counters.running, counters.waiting)
