"""campaigns/<id>/crashes/<engine>.txt: what is known of an engine that ended without being asked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.ledger import Books
from orchestrator.messages import Action, Event, Report, Reported, StartEngine, StopEngine, WorkerGone, WorkerState
from workers.api import EngineSpec, Provenance

TAIL_LINES = 60


@dataclass(slots=True)
class _Life:
    spec: EngineSpec
    node: str
    started: float
    asked: bool = False
    report: Report | None = None
    progressed: float | None = None


class CrashReports:
    """Writes a report for every engine that ended by itself or was killed for silence; `say` names the file."""

    def __init__(self, directory: Path, log: Callable[[str], Path], say: Callable[[str], None]) -> None:
        self._directory, self._log, self._say = directory, log, say
        self._lives: dict[str, _Life] = {}

    def saw(self, event: Event, actions: Sequence[Action], books: Books) -> None:
        """As Observer.saw."""
        del books
        match event:
            case Reported(report) if report.worker in self._lives:
                self._hear(self._lives[report.worker], report)
            case WorkerGone(worker, reason) if worker in self._lives:
                life = self._lives.pop(worker)
                if not life.asked:
                    self._write(worker, life, reason)
        for action in actions:
            match action:
                case StartEngine(worker, node, spec):
                    self._lives[worker] = _Life(spec, node, time.monotonic())
                case StopEngine(worker, hard) if worker in self._lives and not hard:
                    self._lives[worker].asked = True

    def _hear(self, life: _Life, report: Report) -> None:
        before = life.report.counters.generated_tokens if life.report is not None else 0
        if report.counters.generated_tokens > before:
            life.progressed = time.monotonic()
        # A late report of an earlier moment says nothing new.
        if life.report is None or report.seq > life.report.seq:
            life.report = report

    def _write(self, worker: str, life: _Life, reason: str) -> None:
        path = self._directory / f"{worker}.txt"
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(self._text(worker, life, reason)) + "\n", encoding="utf-8")
            self._say(f"engine {worker} ended: {reason}; report: {path}")

    def _text(self, worker: str, life: _Life, reason: str) -> list[str]:
        now, report = time.monotonic(), life.report
        provenance = report.provenance if report is not None else None
        last = "no token was made" if life.progressed is None else f"last token {now - life.progressed:.0f} s earlier"
        state = report.state if report is not None else WorkerState.LOADING
        lines = [
            f"engine     {worker}",
            f"ended      {datetime.now(UTC).isoformat(timespec='seconds')}, {now - life.started:.0f} s after its start",
            f"reason     {reason}",
            f"node       {life.node}" + (f", {provenance.node}, pid {provenance.pid}" if provenance else ""),
            f"device     {_device(provenance) if provenance else 'unknown: it never became ready'}",
            f"state      {state.value}" + (f": {report.detail}" if report is not None and report.detail else ""),
            f"progress   {report.counters.generated_tokens if report else 0:,} tokens generated; {last}",
        ]
        if report is not None:
            lines.append(f"holding    {report.counters.running} running, {report.counters.waiting} waiting rows")
        lines += [f"spec       {key} = {value}" for key, value in asdict(life.spec).items()]
        return [*lines, "", f"last {TAIL_LINES} lines of {self._log(worker)}:", *self._tail(worker)]

    def _tail(self, worker: str) -> list[str]:
        try:
            return self._log(worker).read_text(errors="replace").splitlines()[-TAIL_LINES:]
        except OSError as error:
            return [f"(no log: {error})"]


def _device(provenance: Provenance) -> str:
    gpus = ", ".join(provenance.extra.get("gpus", ()))
    return f"{provenance.device}, {gpus}" if gpus else provenance.device
