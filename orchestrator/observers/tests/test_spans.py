"""Spans, from the scheduler's own answers to a collector that listens on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from orchestrator.messages import Cause, Release
from orchestrator.observers import spans
from orchestrator.observers.spans import Spans
from orchestrator.observers.tests.test_observers import watch
from orchestrator.tests.scheduler_world import planned, ready, world_with


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Span]]:
    """Spans that have arrived at the collector of the environment."""
    arrived: list[Span] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest()
            request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            arrived.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    yield arrived
    server.shutdown()


def facts(span: Span) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


def test_starts_chunks_and_commits_arrive_at_the_collector(collector: list[Span]) -> None:
    made = spans.tracer()
    assert made is not None
    world = watch(world_with([planned("c", block) for block in range(2)]), Spans("job", made))  # type: ignore[arg-type]
    ready(world, "e0001")
    first, second = sorted(world.processes["e0001"].held, key=lambda chunk: chunk.block)
    world.commit("e0001", first)
    process = world.processes["e0001"]
    process.released.append(Release(second, process.held.pop(second), Cause.RETRYABLE, "lost a tile"))
    world.report("e0001")
    made.span_processor.force_flush()  # type: ignore[attr-defined]
    by_name = {span.name: span for span in collector}
    assert {"engine start", "chunk"} <= by_name.keys()
    assert facts(by_name["engine start"])["engine"] == "e0001"
    chunks = {facts(span)["chunk"]: span for span in collector if span.name == "chunk"}
    assert {facts(span)["campaign"] for span in collector} == {"job"}
    assert chunks[first.name].status.code != Status.STATUS_CODE_ERROR
    failed = chunks[second.name]
    assert (failed.status.code, failed.status.message) == (Status.STATUS_CODE_ERROR, "lost a tile")
    assert (facts(failed)["cell"], facts(failed)["engine"]) == ("c", "e0001")
    commits = [span for span in collector if span.name == "commit"]
    assert all(span.parent_span_id == chunks[facts(span)["chunk"]].span_id for span in commits)


def test_nothing_is_sent_unless_a_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in spans.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert spans.tracer() is None
