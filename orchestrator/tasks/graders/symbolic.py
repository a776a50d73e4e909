"""Algebra in a process of its own: some expressions never come back, and no signal reaches big-integer C code.

One child per grading process, kept warm; it gets one pair at a time, a memory limit of its own, and is killed with its
group when its time has passed. No `fork` and no `preexec_fn`: graders run in processes that have threads.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import psutil

# Processor seconds of each of the two tries: verdicts must not depend on what else a machine does.
CPU_SECONDS = 5.0
PATIENCE = 12  # times as long by the clock, for a child that waits for a processor or for nothing at all
START_SECONDS = 120.0
WORKER = "orchestrator.tasks.graders.symbolic_worker"


class SymbolicTimeout(Exception):
    """The pair was not decided within the limit, twice: once in the warm child, once alone in a fresh one."""


@dataclass
class Checker:
    """Client of one child. Thread-safe; the child starts on first use and again after each kill."""

    cpu_seconds: float = CPU_SECONDS
    _child: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def equal(self, gold: str, answer: str) -> bool:
        """Whether two LaTeX answers mean the same. Raises SymbolicTimeout."""
        with self._lock:
            for _ in range(2):
                reply = self._ask({"gold": gold, "answer": answer})
                if reply is not None:
                    return bool(reply["equal"])
        raise SymbolicTimeout(f"not decided within {self.cpu_seconds:g} s")

    def close(self) -> None:
        """Kill the child and whatever it started; idempotent."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, question: dict[str, str]) -> dict[str, object] | None:
        child = self._child if self._child and self._child.poll() is None else self._start()
        if child is None or child.stdin is None:
            return None
        try:
            child.stdin.write(json.dumps(question).encode() + b"\n")
            child.stdin.flush()
        except BrokenPipeError:
            self.close()
            return None
        line = self._answer(child)
        if line is None:
            self.close()
            return None
        reply: dict[str, object] = json.loads(line)
        return reply

    def _start(self) -> subprocess.Popen[bytes] | None:
        self.close()
        self._child = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._line(self._child, START_SECONDS) is None:
            self.close()
        return self._child

    def _answer(self, child: subprocess.Popen[bytes]) -> bytes | None:
        """The reply, or None once the child has spent its processor time on it or PATIENCE has run out."""
        assert child.stdout is not None
        begun, spent = time.monotonic(), _cpu_seconds(child.pid)
        left = self.cpu_seconds
        while left > 0 and time.monotonic() - begun < PATIENCE * self.cpu_seconds:
            if select.select([child.stdout], [], [], left)[0]:
                return self._line(child, self.cpu_seconds)
            left = self.cpu_seconds - (_cpu_seconds(child.pid) - spent)
        return None

    def _line(self, child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        assert child.stdout is not None
        data = b""
        deadline = time.monotonic() + seconds
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                return None
            piece = os.read(child.stdout.fileno(), 65536)
            if not piece:
                return None
            data += piece
        return data


def _cpu_seconds(pid: int) -> float:
    """Processor time of a child so far; infinite once it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return math.inf
    return float(times.user + times.system)


CHECKER = Checker()
atexit.register(CHECKER.close)
