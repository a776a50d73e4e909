"""A real process for a program that nobody trusts: own namespaces, no network, nothing writable, limits, no survivor.

`level()` probes once what this machine allows (orchestrator/tasks/code/walls.py has the levels, best first), and every
result says under which it ran; without any, programs are refused. Started as a plain argument list: no fork and no
preexec_fn, since graders run in processes that have threads.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO

from orchestrator.tasks.code import cgroups, walls
from orchestrator.tasks.code.walls import UNSAFE, Level, Limits, Unavailable

__all__ = ["UNSAFE", "Ended", "Level", "Limits", "Process", "Unavailable", "ask", "level", "run", "start"]

RUNNER = "runner.py"
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_PROBE = """
import os, sys, time
if len([name for name in os.listdir("/proc") if name.isdecimal()]) > 10:
    sys.exit("processes")
if len(open("/proc/net/route").readlines()) > 1:
    sys.exit("network")
for folder in ("/", "/usr", "/etc", "/tmp"):
    try:
        open(folder + "/evictbench_probe", "w")
        sys.exit("written")
    except OSError:
        pass
try:
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
except OSError:
    print("contained")
"""


@dataclass
class Process:
    """A program in its sandbox with its pipes; `close` leaves no process behind."""

    popen: subprocess.Popen[bytes]
    requests: int | None = None
    replies: int | None = None
    group: cgroups.Group | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def status(self, seconds: float = 5.0) -> int:
        """Exit status of a program that closed its reply channel; one that lives on all the same counts as killed."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def close(self) -> None:
        """Kill what is left; with the first process of its namespace the kernel kills all others."""
        first = _children(self.popen.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        _await_end(first)
        if self.group is not None:
            self.group.close()
        for descriptor in (self.requests, self.replies):
            if descriptor is not None:
                os.close(descriptor)
        self.requests = self.replies = None
        for pipe in (self.popen.stdout, self.popen.stderr):
            if pipe is not None:
                pipe.close()
        self._selector.close()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. status: exit status, negative for a signal, None when the wall clock ran out.

    too_much       more output than allowed
    out_of_memory  the control group's memory ran out
    """

    status: int | None
    output: bytes
    errors: bytes
    too_much: bool
    out_of_memory: bool = False


@cache
def level() -> Level:
    """The best level of this machine. Raises Unavailable, which names every level and what is wrong with it."""
    return walls.choose(probe, root=os.geteuid() == 0)


def probe(candidate: Level) -> str:
    """What is wrong with a level here, empty when nothing is: contained in fact, not in name.

    A harmless program runs in it, and writing, forking and connecting fail.
    """
    if lacks := walls.missing(candidate):
        return lacks
    try:
        ended = run(_PROBE, b"", Limits(processes=16, wall_seconds=20), candidate)
    except OSError as error:
        return str(error)
    if ended.output.strip() == b"contained":
        return ""
    said = (ended.errors or ended.output).decode("utf-8", "replace").strip().splitlines()
    return said[-1][:200] if said else f"ended with status {ended.status}"


def run(code: str, stdin: bytes, limits: Limits, at: Level | None = None) -> Ended:
    """Run a program that reads standard input. Raises Unavailable, OSError where the level does not work."""
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        os.fchmod(source.fileno(), 0o444)
        process = start(code, (), limits, at or level(), stdin=source)
    try:
        ended = _collect(process, limits)
        memory = process.group is not None and process.group.out_of_memory()
        return replace(ended, out_of_memory=memory)
    finally:
        process.close()


def start(
    code: str,
    channel: Sequence[str],
    limits: Limits,
    at: Level,
    *,
    stdin: IO[bytes] | None = None,
    runner: str = RUNNER,
) -> Process:
    """Start a runner; with `channel`, its arguments, it also gets two descriptors for requests and replies."""
    requests = replies = None
    group = cgroups.create(limits.processes, limits.memory_bytes) if at.cgroup else None
    with tempfile.TemporaryFile() as program:
        program.write(code.encode("utf-8", "surrogateescape"))
        program.seek(0)
        os.fchmod(program.fileno(), 0o444)
        theirs: list[int] = []
        if channel:
            request_end, requests = os.pipe()
            replies, reply_end = os.pipe()
            theirs = [request_end, reply_end]
        arguments = [str(program.fileno()), *channel, *map(str, theirs)]
        inside = walls.command(at, runner, arguments, limits, moving_cpu=bool(channel))
        popen = subprocess.Popen(
            [*(group.prefix() if group else ()), *inside],
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[program.fileno(), *theirs],
            start_new_session=True,
            env=ENVIRONMENT,
            cwd="/",
        )
        for descriptor in theirs:
            os.close(descriptor)
    return Process(popen, requests, replies, group)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _runs(pid: int) -> bool:
    """False for a zombie as well: the first process of a namespace becomes one after all others are gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _await_end(pids: list[int], seconds: float = 10.0) -> None:
    """The first process of a namespace goes last: when it is gone, so is everything that a program left."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(_runs, pids)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _collect(process: Process, limits: Limits) -> Ended:
    popen, chunks = process.popen, {"out": bytearray(), "err": bytearray()}
    assert popen.stdout is not None
    assert popen.stderr is not None
    caps = {"out": limits.output_bytes, "err": limits.error_bytes}
    process._selector.register(popen.stdout, selectors.EVENT_READ, "out")
    process._selector.register(popen.stderr, selectors.EVENT_READ, "err")
    deadline = time.monotonic() + limits.wall_seconds
    while process._selector.get_map():
        left = deadline - time.monotonic()
        if left <= 0:
            return Ended(None, bytes(chunks["out"]), bytes(chunks["err"]), False)
        for key, _ in process._selector.select(min(left, 0.5)):
            data = os.read(key.fd, 1 << 16)
            if not data:
                process._selector.unregister(key.fileobj)
            elif len(chunks[key.data]) < caps[key.data]:
                chunks[key.data] += data
            elif key.data == "out":
                return Ended(None, bytes(chunks["out"]), bytes(chunks["err"]), True)
    try:
        status = popen.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Ended(None, bytes(chunks["out"]), bytes(chunks["err"]), False)
    return Ended(status, bytes(chunks["out"]), bytes(chunks["err"]), False)


def ask(process: Process, request: bytes, seconds: float) -> bytes | None:
    """One request line, one reply line; empty when the program ended, None when it took too long."""
    assert process.requests is not None
    assert process.replies is not None
    with contextlib.suppress(BrokenPipeError):
        os.write(process.requests, request)
    return _read_line(process, process.replies, seconds)


def _read_line(process: Process, replies: int, seconds: float) -> bytes | None:
    deadline, line = time.monotonic() + seconds, bytearray()
    drains: Sequence[IO[bytes]] = [pipe for pipe in (process.popen.stdout, process.popen.stderr) if pipe]
    with selectors.DefaultSelector() as selector:
        selector.register(replies, selectors.EVENT_READ)
        for pipe in drains:
            selector.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                if key.fd == replies:
                    line += data
                    if not data:
                        return bytes(line)
                    if line.endswith(b"\n"):
                        return bytes(line)
                elif not data:
                    selector.unregister(key.fileobj)
    return None
