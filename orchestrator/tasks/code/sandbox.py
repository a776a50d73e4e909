"""A real process for a program that nobody trusts: own namespaces, no network, nothing writable, limits, no survivor.

Levels, best first; `level()` probes once what this machine allows and every result says under which it ran:
  namespaces+uid   root: unshare (mount, net, pid, ipc, uts), then an unprivileged uid without capabilities
  namespaces       a user with user namespaces: the same, mapped to itself
Without either, programs are refused. Started as a plain argument list: no fork and no preexec_fn, since graders run in
processes that have threads.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

RUNNER = Path(__file__).with_name("runner.py")
MOUNT = "/mnt"
FIRST_UID = 60_000
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# every file system that holds files, not only the root's
READ_ONLY = (
    "while read -r _ target type _; do case $type in proc|sysfs|cgroup*|dev*|mqueue) ;; "
    '*) mount -o remount,bind,ro "$target" 2>/dev/null || true ;; esac; done < /proc/self/mounts'
)
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Per run: CPU and wall seconds, address space and output in bytes, processes."""

    cpu_seconds: int = 6
    wall_seconds: float = 18.0
    memory_bytes: int = 1024**3
    output_bytes: int = 8 * 1024**2
    error_bytes: int = 64 * 1024
    processes: int = 32


class Unavailable(Exception):
    """This machine offers no sandbox; the text says how to get one."""


@dataclass
class Process:
    """A program in its sandbox with its pipes; `close` leaves no process behind."""

    popen: subprocess.Popen[bytes]
    requests: int | None = None
    replies: int | None = None
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
    """How a run ended. status: exit status, negative for a signal, None when the wall clock ran out."""

    status: int | None
    output: bytes
    errors: bytes
    too_much: bool


@cache
def level() -> str:
    """The level of this machine. Raises Unavailable."""
    for name in ("namespaces+uid", "namespaces"):
        if shutil.which("unshare") and shutil.which("setpriv") and _probe(name):
            return name
    raise Unavailable(
        "programs cannot be run safely here: neither root nor user namespaces are available to `unshare`. Run as root, "
        "allow unprivileged user namespaces, or judge on another machine."
    )


def _probe(name: str) -> bool:
    """Contained in fact, not in name: a harmless program runs, and writing, forking and connecting fail in it."""
    if (name == "namespaces+uid") != (os.geteuid() == 0):
        return False
    try:
        ended = run(_PROBE, b"", Limits(processes=16, wall_seconds=10), name)
    except OSError:
        return False
    return ended.output.strip() == b"contained"


def run(code: str, stdin: bytes, limits: Limits, at: str | None = None) -> Ended:
    """Run a program that reads standard input. Raises Unavailable."""
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        os.fchmod(source.fileno(), 0o444)
        process = start(code, "", limits, at or level(), source)
    try:
        return _collect(process, limits)
    finally:
        process.close()


def start(code: str, name: str, limits: Limits, at: str, stdin: IO[bytes] | None = None) -> Process:
    """Start the runner in the sandbox; `name` is the function that will be called, empty for standard input."""
    requests = replies = None
    with tempfile.TemporaryFile() as program:
        program.write(code.encode("utf-8", "surrogateescape"))
        program.seek(0)
        os.fchmod(program.fileno(), 0o444)
        theirs: list[int] = []
        if name:
            request_end, requests = os.pipe()
            replies, reply_end = os.pipe()
            theirs = [request_end, reply_end]
        arguments = [str(program.fileno()), *([name, *map(str, theirs)] if name else [])]
        popen = subprocess.Popen(
            _command(arguments, limits, at),
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
    return Process(popen, requests, replies)


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


def _command(arguments: list[str], limits: Limits, at: str) -> list[str]:
    """unshare -> sh (mounts, limits) -> setpriv -> python, bound to where an unprivileged uid may read it.

    sh stays as the first process of the namespace: as such the program itself would be immune to its CPU limit.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = sysconfig.get_path("purelib")
    mounts = [
        f"mount -t tmpfs -o size=64k,mode=755 tmpfs {MOUNT}",
        f"mkdir {MOUNT}/python {MOUNT}/site {MOUNT}/runner",
        f"mount --bind '{sys.base_prefix}' {MOUNT}/python",
        f"mount --bind '{site}' {MOUNT}/site",
        f"mount --bind '{RUNNER.parent}' {MOUNT}/runner",
        *(f"test ! -d {path} || mount -t tmpfs -o size=4k,mode=755,ro tmpfs {path}"
          for path in ("/root", "/home", "/tmp", "/var/tmp", "/dev/shm", "/run")),
        READ_ONLY,
        f"mount -o remount,ro {MOUNT}",
    ]  # fmt: skip
    # the runner moves the soft limit on from request to request; the wall clock guards against what ignores its signal
    cpu = "-t" if len(arguments) == 1 else "-S -t"
    rlimits = (
        f"ulimit -v {limits.memory_bytes // 1024}; ulimit {cpu} {limits.cpu_seconds + 1}; ulimit -c 0; ulimit -f 0; "
        f"ulimit -s 524288 2>/dev/null"
    )
    drop = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
    if at == "namespaces+uid":
        uid = FIRST_UID + os.getpid() % 5_000
        drop += [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    python = [
        f"{MOUNT}/python/bin/{version}",
        "-I",
        "-S",
        f"{MOUNT}/runner/{RUNNER.name}",
        f"{MOUNT}/site",
        *map(shlex.quote, arguments),
    ]
    processes = ["prlimit", f"--nproc={limits.processes}"]
    script = f"{' && '.join(mounts)} && {rlimits}; {' '.join([*drop, *processes, *python])}; exit $?"
    spaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
    mapped = [] if at == "namespaces+uid" else ["--user", "--map-root-user"]
    return ["unshare", *mapped, *spaces, "sh", "-c", script]


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
