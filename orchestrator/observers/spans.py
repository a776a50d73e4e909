"""Spans for OpenTelemetry: engine starts, chunks from hand-over to commit, and the commits inside them.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) names a collector, for example
http://localhost:4318; the SDK reads every other OTEL_... variable itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from orchestrator.chunks import ChunkId
from orchestrator.errors import UserError
from orchestrator.ledger import Books
from orchestrator.messages import (
    Action,
    Assign,
    Event,
    Failed,
    Found,
    Report,
    Reported,
    StartEngine,
    WorkerGone,
    WorkerState,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NANOSECONDS = 1_000_000_000


def tracer() -> Tracer | None:
    """A tracer for the collector that the environment names; None where it names none. Raises UserError without SDK."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise UserError(
            f"{' or '.join(ENDPOINTS)} is set, but OpenTelemetry is not installed: pip install opentelemetry-sdk "
            "opentelemetry-exporter-otlp-proto-http, or unset the variable."
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  optional
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  optional
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  optional
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  optional

    # Sends what is left when the process ends.
    provider = TracerProvider(resource=Resource.create({"service.name": "evictbench"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("evictbench")


class Spans:
    """Opens and ends spans as it is told; every span has the campaign, and the engine, cell and chunk it is about."""

    def __init__(self, campaign: str, tracer: Tracer) -> None:
        self._campaign, self._tracer = campaign, tracer
        self._starting: dict[str, Span] = {}
        self._chunks: dict[ChunkId, Span] = {}

    def saw(self, event: Event, actions: Sequence[Action], books: Books) -> None:
        """As Observer.saw."""
        del books
        match event:
            case Reported(report):
                self._hear(report)
            case Found(chunks):
                for chunk in chunks:
                    self._end(self._chunks.pop(chunk, None))
            case WorkerGone(worker, reason):
                self._end(self._starting.pop(worker, None), reason)
        for action in actions:
            match action:
                case StartEngine(worker, node, engine):
                    facts = {"node": node, "model": engine.model, "tp": engine.tp, "pp": engine.pp}
                    self._starting[worker] = self._open("engine start", engine=worker, **facts)
                case Assign(worker, assigned):
                    for chunk, attempt in assigned:
                        facts = {"cell": chunk.cell_id, "chunk": chunk.name, "attempt": attempt}
                        self._chunks[chunk] = self._open("chunk", engine=worker, **facts)
                case Failed(chunk, reason=reason):
                    self._end(self._chunks.pop(chunk, None), reason)

    def _hear(self, report: Report) -> None:
        if report.state is WorkerState.READY:
            self._end(self._starting.pop(report.worker, None))
        seconds = dict(zip(report.committed, report.commit_seconds, strict=False))
        for chunk in report.committed:
            span = self._chunks.pop(chunk, None)
            if span is not None and chunk in seconds:
                self._commit(span, chunk, seconds[chunk])
            self._end(span)

    def _commit(self, parent: Span, chunk: ChunkId, seconds: float) -> None:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415  optional

        now = time.time_ns()
        span = self._tracer.start_span(
            "commit", set_span_in_context(parent), start_time=now - int(seconds * _NANOSECONDS)
        )
        span.set_attributes({"campaign": self._campaign, "cell": chunk.cell_id, "chunk": chunk.name})
        span.end(now)

    def _open(self, name: str, **facts: Any) -> Span:
        return self._tracer.start_span(name, attributes={"campaign": self._campaign, **facts})

    def _end(self, span: Span | None, problem: str = "") -> None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415  optional

        if span is None:
            return
        if problem:
            span.set_status(StatusCode.ERROR, problem)
        span.end()
