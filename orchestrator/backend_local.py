"""Engine workers as local processes: for fault tests with real deaths, and for machines without Ray."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from orchestrator.backend import EXIT_REASONS, Launch, Lost, Machine
from orchestrator.grading import Graded, GradeWork, grade
from orchestrator.messages import Order, Report, Seat

_CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    connection: Connection


class LocalBackend:
    """Implements orchestrator.backend.Backend with `places` engines and `graders` grading processes on this machine."""

    def __init__(self, places: int = 1, graders: int = 1) -> None:
        self._places, self._n_graders = places, graders
        self._children: dict[str, _Child] = {}
        self._graders = _grader_pool(graders)
        self._grading: dict[Future[Graded], GradeWork] = {}

    def machines(self) -> list[Machine]:
        """This one."""
        return [Machine(platform.node(), self._places, gpu="" if shutil.which("nvidia-smi") else None)]

    def start(self, launch: Launch, node: str, seats: Sequence[Seat] = ()) -> None:
        """As Backend.start; the node is always this machine."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.worker_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A group of its own: Ctrl-C in the terminal drains, and killing the group takes engine children along.
                process_group=0,
            )
        connection = Connection(ours.detach())
        self._children[launch.worker] = _Child(process, connection)
        with suppress(OSError):
            connection.send(launch)

    def send(self, worker: str, order: Order) -> None:
        """As Backend.send."""
        if worker in self._children:
            with suppress(OSError):
                self._children[worker].connection.send(order)

    def graders(self) -> int:
        """As Backend.graders."""
        return self._n_graders

    def grade(self, work: GradeWork) -> None:
        """As Backend.grade."""
        self._grading[self._graders.submit(grade, work)] = work

    def poll(self, seconds: float) -> list[Report | Lost | Graded]:
        """As Backend.poll."""
        found: list[Report | Lost | Graded] = [self._grade_done(f) for f in list(self._grading) if f.done()]
        workers = {child.connection: name for name, child in self._children.items()}
        if found:
            seconds = 0.0
        if not workers:
            time.sleep(seconds)
            return found
        for connection in wait(list(workers), timeout=seconds):
            name = workers[connection]  # type: ignore[index]
            try:
                found.append(self._children[name].connection.recv())
            except (EOFError, OSError):
                found.append(self._bury(name))
        return found

    def stop(self, worker: str, hard: bool) -> None:
        """As Backend.stop."""
        child = self._children.get(worker)
        if child is None:
            return
        if hard:
            _kill_group(child.process)
        else:
            with suppress(OSError):
                child.connection.send(None)

    def set_aside(self, worker: str) -> None:
        """As Backend.set_aside; nothing is handed out here, so there is nothing to keep."""
        if worker in self._children:
            self._bury(worker)

    def close(self) -> None:
        """As Backend.close."""
        for name in list(self._children):
            self._bury(name)
        self._graders.shutdown(wait=False, cancel_futures=True)

    def _grade_done(self, future: Future[Graded]) -> Graded:
        work = self._grading.pop(future)
        try:
            return future.result()
        except BrokenExecutor as error:
            self._graders = _grader_pool(self._n_graders)
            return Graded(work, f"grading process died: {error}")

    def _bury(self, name: str) -> Lost:
        """The socket ended or must end: take the whole group down and collect the exit status."""
        child = self._children.pop(name)
        child.connection.close()
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(0.2)
        _kill_group(child.process)
        code = child.process.wait(_CLOSE_SECONDS)
        return Lost(name, _reason(code))


def _grader_pool(size: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(size, mp_context=multiprocessing.get_context("spawn"), initializer=_live_with_driver)


def _live_with_driver() -> None:
    """In a grading process: Ctrl-C is the driver's business, its death is ours (a pool's queue never notices it)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    driver = multiprocessing.parent_process()
    assert driver is not None

    def follow() -> None:
        driver.join()
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The group outlives its leader while an engine child runs, so its id is not reused before this.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _reason(code: int) -> str:
    if code < 0:
        return f"engine process killed by {signal.Signals(-code).name}"
    return f"engine process {EXIT_REASONS.get(code, f'ended with exit status {code}')}"
