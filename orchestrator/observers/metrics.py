"""Prometheus metrics of a driver; infra/grafana/evictbench.json draws them. Labels are few: campaign, policy, cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, start_http_server

from orchestrator.cells import Cell
from orchestrator.chunks import ChunkId
from orchestrator.errors import UserError
from orchestrator.ledger import Books, Phase, Status
from orchestrator.messages import Action, Event, Failed, Found, Report, Reported, StartEngine, Tick
from orchestrator.store import mirror
from orchestrator.store.paths import StorePaths

_ROW_COLUMNS = ["n_output", "events", "prompt_kept_mean", "num_preemptions"]
_COMMIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Counts what it is told; `cell` finds a chunk's cell, for the policy label."""

    def __init__(self, campaign: str, paths: StorePaths, cell: Callable[[str], Cell]) -> None:
        self.registry = CollectorRegistry()
        self._paths, self._cell = paths, cell
        self._tokens: dict[str, int] = {}
        self._busy: dict[str, bool] = {}
        self._ticked = time.monotonic()

        def named(name: str, text: str, *labels: str) -> dict[str, Any]:
            names = ("campaign", *labels)
            return {"name": f"evictbench_{name}", "documentation": text, "labelnames": names, "registry": self.registry}

        tokens, starts = "Tokens generated, lost ones included.", "Engines started: every load of a model."
        kept, commits = "Share of prompt tokens cached at a row's end.", "Time to commit a chunk."
        self._campaign = campaign
        self._rows = Counter(**named("rows", "Rows committed.", "policy"))
        self._made = Counter(**named("generated_tokens", tokens)).labels(campaign)
        self._attempts = Counter(**named("failed_attempts", "Attempts that ended without a commit.", "cause"))
        self._starts = Counter(**named("engine_starts", starts)).labels(campaign)
        self._engine_seconds = Counter(**named("engine_seconds", "Seconds of engines by what they did.", "state"))
        self._evictions = Counter(**named("evictions", "Eviction events of committed rows.", "policy"))
        self._prompt = Summary(**named("prompt_kept", kept, "policy"))
        self._preemptions = Counter(**named("preemptions", "Preemptions of committed rows.")).labels(campaign)
        self._commits = Histogram(**named("commit_seconds", commits), buckets=_COMMIT_BUCKETS).labels(campaign)
        self._chunks = Gauge(**named("chunks", "Chunks by status.", "status"))
        self._engines = Gauge(**named("engines", "Engines by phase.", "phase"))

    def serve(self, host: str, port: int) -> None:
        """Answer scrapes from a thread. Raises UserError when the address cannot be used."""
        try:
            start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise UserError(f"metrics cannot be served on {host}:{port}: {error}. Choose another port.") from error

    def saw(self, event: Event, actions: Sequence[Action], books: Books) -> None:
        """As Observer.saw."""
        match event:
            case Reported(report):
                self._hear(report)
            case Found(chunks):
                self._count_rows(chunks)
            case Tick():
                self._measure(books)
        for action in actions:
            match action:
                case StartEngine():
                    self._starts.inc()
                case Failed(cause=cause):
                    self._attempts.labels(self._campaign, cause.value).inc()

    def _hear(self, report: Report) -> None:
        made = report.counters.generated_tokens
        self._made.inc(max(0, made - self._tokens.get(report.worker, 0)))
        self._tokens[report.worker] = max(made, self._tokens.get(report.worker, 0))
        self._busy[report.worker] = report.counters.running > 0
        for seconds in report.commit_seconds:
            self._commits.observe(seconds)
        self._count_rows(report.committed)

    def _count_rows(self, chunks: Iterable[ChunkId]) -> None:
        for chunk in chunks:
            policy = self._cell(chunk.cell_id).policy.name
            with suppress(OSError, pa.ArrowException):
                rows = pq.read_table(mirror.fetch(self._paths.generation(chunk)), columns=_ROW_COLUMNS).to_pylist()
                self._rows.labels(self._campaign, policy).inc(len(rows))
                self._evictions.labels(self._campaign, policy).inc(sum(row["events"] or 0 for row in rows))
                self._preemptions.inc(sum(row["num_preemptions"] or 0 for row in rows))
                for row in rows:
                    if row["prompt_kept_mean"] is not None:
                        self._prompt.labels(self._campaign, policy).observe(row["prompt_kept_mean"])

    def _measure(self, books: Books) -> None:
        now = time.monotonic()
        passed, self._ticked = now - self._ticked, now
        for status in Status:
            self._chunks.labels(self._campaign, status.value).set(_count(books, status))
        phases = [worker.phase for worker in books.workers.values()]
        for phase in Phase:
            self._engines.labels(self._campaign, phase.value).set(phases.count(phase))
        for worker in books.workers.values():
            busy = "busy" if self._busy.get(worker.name) else "idle"
            state = busy if worker.phase is Phase.READY else worker.phase.value
            self._engine_seconds.labels(self._campaign, state).inc(passed)


def _count(books: Books, status: Status) -> int:
    """Chunks of a status from running totals: a tick must not walk 100,000 of them."""
    if status is Status.COMMITTED:
        return books.committed
    if status is Status.PARKED:
        return books.parked
    owned = sum(len(worker.owned) for worker in books.workers.values())
    return owned if status is Status.OWNED else len(books.chunks) - books.committed - books.parked - owned
