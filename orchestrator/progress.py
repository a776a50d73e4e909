"""What a running campaign shows: a live panel in a terminal, a line now and then anywhere else."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_PLAIN_SECONDS = 10.0
_WINDOW_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One engine worker as the driver last heard of it."""

    name: str
    serves: str
    state: str
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a campaign stands. Rows count whole committed chunks; eta_seconds is None while it cannot be told."""

    rows_done: int
    rows_planned: int
    tokens_per_second: float
    eta_seconds: float | None
    engines: tuple[EngineLine, ...]
    failures: int
    parked_rows: int
    ungraded_chunks: int
    draining: bool
    paused: bool = False


@dataclass(slots=True)
class Rate:
    """Tokens per second over the last seconds; `counts` are tokens by worker since its start."""

    _points: deque[tuple[float, int]] = field(default_factory=deque)
    _seen: dict[str, int] = field(default_factory=dict)
    total: int = 0

    def add(self, worker: str, count: int, now: float) -> None:
        """Take in a worker's count."""
        new = count - self._seen.get(worker, 0)
        self._seen[worker] = count
        if new > 0:
            self.total += new
            self._points.append((now, new))

    def value(self, now: float) -> float:
        """Tokens per second of the window that ends now; 0 where nothing was generated in it."""
        while self._points and self._points[0][0] < now - _WINDOW_SECONDS:
            self._points.popleft()
        if not self._points:
            return 0.0
        return sum(count for _, count in self._points) / max(now - self._points[0][0], 1.0)


class View(Protocol):
    """Shows snapshots; lines said in between stay on screen."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, snapshot: Snapshot) -> None:
        """Replace what is shown."""

    def say(self, text: str) -> None:
        """Add a line."""


def view_for(console: Console) -> View:
    """A live view in a terminal, plain lines in a pipe or a log."""
    return LiveView(console) if console.is_terminal else PlainView(console)


class LiveView:
    """A panel that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """As View.show."""
        self._live.update(panel(snapshot))

    def say(self, text: str) -> None:
        """As View.say."""
        self._live.console.print(text, markup=False, highlight=False)


class PlainView:
    """One line every ten seconds, and at once when an engine changes its state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = -_PLAIN_SECONDS
        self._states: tuple[tuple[str, str], ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, snapshot: Snapshot) -> None:
        """As View.show."""
        now, states = time.monotonic(), tuple((line.name, line.state) for line in snapshot.engines)
        if now - self._last < _PLAIN_SECONDS and states == self._states:
            return
        self._last, self._states = now, states
        engines = "; ".join(f"{line.name} {line.serves}: {line.state}" for line in snapshot.engines)
        self.say(headline(snapshot) + (f" | {engines}" if engines else ""))

    def say(self, text: str) -> None:
        """As View.say."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def headline(snapshot: Snapshot) -> str:
    """`120/520 rows, 6,912 tokens/s, 0:01:12 left, 1 failure`."""
    parts = [
        f"{snapshot.rows_done:,}/{snapshot.rows_planned:,} rows",
        f"{snapshot.tokens_per_second:,.0f} tokens/s",
    ]
    if snapshot.eta_seconds is not None:
        parts.append(f"{duration(snapshot.eta_seconds)} left")
    if snapshot.failures:
        parts.append(f"{snapshot.failures} failed attempt{'s' * (snapshot.failures != 1)}")
    if snapshot.parked_rows:
        parts.append(f"{snapshot.parked_rows} rows parked")
    if snapshot.ungraded_chunks:
        parts.append(f"{snapshot.ungraded_chunks} chunks to grade")
    if snapshot.paused:
        parts.append("paused: evictbench resume goes on")
    if snapshot.draining:
        parts.append("draining: Ctrl-C again stops at once")
    return ", ".join(parts)


def panel(snapshot: Snapshot) -> RenderableType:
    """The live view: bar, headline, one line per engine."""
    engines = Table.grid(padding=(0, 2))
    for line in snapshot.engines:
        engines.add_row(line.name, line.serves, line.state, f"{line.running} running", f"{line.waiting} waiting")
    # A bar alone ends without a newline; as a row it gets one.
    bar = Table.grid()
    bar.add_row(ProgressBar(total=max(1, snapshot.rows_planned), completed=snapshot.rows_done, width=60))
    return Group(bar, Text(headline(snapshot)), engines)


def duration(seconds: float) -> str:
    """`0:01:12`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
