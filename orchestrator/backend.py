"""How engine workers are started, talked to and ended: one protocol, two ways (local processes, Ray actors)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.grading import Graded, GradeWork
from orchestrator.messages import Order, Report, Seat
from workers.api import EngineSpec

ENGINES = "workers.engines:create"
"""Dotted name of what turns an EngineSpec into an Engine, by its kind."""

EXIT_REASONS = {70: "made no token for too long and ended itself"}


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a worker process must know before its first order.

    worker   engine id in the store, unique among drivers
    store    directory of the store, as the worker's machine sees it
    log      file that receives everything the process and its children print
    threads  CPU threads of the engine; 0 leaves them to the engine
    create   dotted name of what turns an EngineSpec into an Engine
    installation  environment.installation() of the driver; a worker with another one refuses to start
    """

    worker: str
    spec: EngineSpec
    store: str
    campaign: str
    log: str
    threads: int = 0
    stuck_seconds: float = 300.0
    create: str = ENGINES
    installation: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker process is dead, for whatever reason, and its place is free.

    unplaced  it never started: the place that it was meant for was not to be had in time
    """

    worker: str
    reason: str
    unplaced: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """A node and its places: GPUs; one on a machine without, where engines follow one another.

    gpu  kind of its GPUs, empty where nothing tells; None on a machine without
    """

    name: str
    units: int
    facts: Mapping[str, object] = field(default_factory=dict)
    gpu: str | None = None


class Backend(Protocol):
    """Driven from one thread. No call blocks longer than it says."""

    def machines(self) -> Sequence[Machine]:
        """Nodes that are up now."""

    def start(self, launch: Launch, node: str, seats: Sequence[Seat] = ()) -> None:
        """Start a worker on a node, with ranks on others where it has several seats; failures come back as Lost."""

    def send(self, worker: str, order: Order) -> None:
        """Queue an order; one for a dead worker is dropped."""

    def graders(self) -> int:
        """Works that can be graded at the same time."""

    def grade(self, work: GradeWork) -> None:
        """Grade in another process; Graded follows."""

    def poll(self, seconds: float) -> list[Report | Lost | Graded]:
        """What arrived, waiting up to `seconds` for the first."""

    def stop(self, worker: str, hard: bool) -> None:
        """Ask a worker to end, or kill it with its children; Lost follows when it is dead."""

    def set_aside(self, worker: str) -> None:
        """Hear nothing more of a worker, but let its process keep what it was given until close."""

    def close(self) -> None:
        """Kill every worker that is left and release the backend; returns within about ten seconds."""
