"""campaigns/<id>/events.jsonl: one line per thing that happened, for machines and for questions asked later."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.chunks import ChunkId
from orchestrator.ledger import Books
from orchestrator.messages import (
    Action,
    Assign,
    Drain,
    Event,
    Failed,
    Found,
    NodeLost,
    NodeUp,
    Pause,
    Quarantine,
    Reported,
    Resume,
    Retry,
    StartEngine,
    StopEngine,
    WorkerGone,
)

Fact = Mapping[str, Any]


class EventLog:
    """Appends JSON lines; each has time, campaign, driver and event, and chunk, cell and engine ids where they apply.

    Several drivers may append to one file: a line is one write.
    """

    def __init__(self, path: Path, campaign: str, driver: str) -> None:
        self._path = path
        self._common = {"campaign": campaign, "driver": driver}

    def saw(self, event: Event, actions: Sequence[Action], books: Books) -> None:
        """As Observer.saw. What cannot be written is lost: the store is the record, this is its diary."""
        del books
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        facts = [*_of_event(event), *(fact for action in actions for fact in _of_action(action))]
        lines = [json.dumps({"at": now, **self._common, **fact}) + "\n" for fact in facts]
        if lines:
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write("".join(lines))


def _chunk(chunk: ChunkId) -> Fact:
    return {"cell_id": chunk.cell_id, "chunk": chunk.name}


def _of_event(event: Event) -> Iterator[Fact]:
    match event:
        case Reported(report):
            for chunk in report.committed:
                yield {"event": "committed", "engine": report.worker, **_chunk(chunk)}
        case Found(chunks):
            for chunk in chunks:
                yield {"event": "found", **_chunk(chunk)}
        case WorkerGone(worker, reason):
            yield {"event": "engine_gone", "engine": worker, "reason": reason}
        case NodeUp(node, units):
            yield {"event": "node_up", "node": node, "places": units}
        case NodeLost(node):
            yield {"event": "node_lost", "node": node}
        case Drain() | Pause() | Resume() | Retry():
            yield {"event": type(event).__name__.lower()}


def _of_action(action: Action) -> Iterator[Fact]:
    match action:
        case StartEngine(worker, node, engine):
            yield {"event": "engine_start", "engine": worker, "node": node, "model": engine.model, "tp": engine.tp}
        case StopEngine(worker, hard, reason):
            yield {"event": "engine_stop", "engine": worker, "hard": hard, "reason": reason}
        case Assign(worker, chunks):
            for chunk, attempt in chunks:
                yield {"event": "assigned", "engine": worker, "attempt": attempt, **_chunk(chunk)}
        case Failed(chunk, attempt, cause, reason, worker, parked):
            fate = "parked" if parked else "failed"
            facts = {"attempt": attempt, "cause": cause.value, "reason": reason, "engine": worker}
            yield {"event": fate, **facts, **_chunk(chunk)}
        case Quarantine(node, reason):
            yield {"event": "quarantine", "node": node, "reason": reason}
