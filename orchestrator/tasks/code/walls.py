"""How a program is walled in: the levels of isolation, best first, and the command that each one is.

  bwrap     bubblewrap: own mounts, network, processes; everything read-only
  unshare   the same from util-linux, with mounts made by a shell
  +uid      root only: an unprivileged uid without capabilities, so that process limits hold
  +cgroup   all processes and all memory of a run capped together
Without any of them a program is refused, or runs with resource limits only where a job allows that by name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNNERS = Path(__file__).parent
MOUNT = "/mnt"
FIRST_UID = 60_000
HIDDEN = ("/root", "/home", "/tmp", "/var/tmp", "/dev/shm", "/run")
# every file system that holds files, not only the root's
READ_ONLY = (
    "while read -r _ target type _; do case $type in proc|sysfs|cgroup*|dev*|mqueue) ;; "
    '*) mount -o remount,bind,ro "$target" 2>/dev/null || true ;; esac; done < /proc/self/mounts'
)


class Unavailable(Exception):
    """This machine offers no sandbox; the text says how to get one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Per run: CPU and wall seconds, address space and output in bytes, processes."""

    cpu_seconds: int = 6
    wall_seconds: float = 18.0
    memory_bytes: int = 1024**3
    output_bytes: int = 8 * 1024**2
    error_bytes: int = 64 * 1024
    processes: int = 32


@dataclass(frozen=True, slots=True)
class Level:
    """walls: bwrap, unshare, or empty for none at all."""

    walls: str
    uid: bool = False
    cgroup: bool = False

    @property
    def name(self) -> str:
        """`bwrap+uid+cgroup`: stored with every result."""
        return "+".join([self.walls or "unsafe", *(["uid"] * self.uid), *(["cgroup"] * self.cgroup)])


UNSAFE = Level("")


def candidates(*, root: bool) -> tuple[Level, ...]:
    """Levels that a machine could offer, best first."""
    return tuple(Level(walls, root, cgroup) for walls in ("bwrap", "unshare") for cgroup in (True, False))


def choose(probe: Callable[[Level], str], *, root: bool) -> Level:
    """The best level that works. `probe` says what is wrong with one, if anything. Raises Unavailable."""
    reasons = []
    for level in candidates(root=root):
        reason = probe(level)
        if not reason:
            return level
        reasons.append(f"{level.name}: {reason}")
    raise Unavailable(
        f"programs cannot be run safely here ({'; '.join(reasons)}). Install bubblewrap, run as root, or allow "
        "unprivileged user namespaces; judge on another machine; or, for programs that you trust, give the task "
        "`allow_unsafe: true`."
    )


def missing(level: Level) -> str:
    """Tools that a level needs and this machine lacks; empty when all are there."""
    tools = [level.walls, "prlimit", *(["setpriv"] if level.uid or level.walls == "unshare" else [])]
    absent = [tool for tool in tools if not shutil.which(tool)]
    return f"no {', '.join(absent)}" if absent else ""


def user_id() -> int:
    """The uid that programs of this process run as, where root drops to one."""
    return FIRST_UID + os.getpid() % 5_000


def command(level: Level, runner: str, arguments: Sequence[str], limits: Limits, *, moving_cpu: bool) -> list[str]:
    """Argument list that runs `runner` with `arguments` behind the walls.

    moving_cpu  the runner raises its soft CPU limit from test to test, so only that one is set here
    """
    python = [_interpreter(level), "-I", "-S", *_paths(level, runner), *arguments]
    inside = " ".join(shlex.quote(part) for part in [*_drop(level), "prlimit", f"--nproc={limits.processes}", *python])
    cpu = "-S -t" if moving_cpu else "-t"
    rlimits = (
        f"ulimit -v {limits.memory_bytes // 1024}; ulimit {cpu} {limits.cpu_seconds + 1}; ulimit -c 0; ulimit -f 0; "
        f"ulimit -s 524288 2>/dev/null"
    )
    # sh stays as the first process of the namespace. As such the program would be immune to its CPU limit, and a helper
    # of bubblewrap's would report the end before everything in the namespace is gone.
    if level.walls == "bwrap":
        return [shutil.which("bwrap") or "bwrap", *_bwrap(level), "sh", "-c", f"{rlimits}; {inside}; exit $?"]
    if level.walls == "unshare":
        return [*_unshare(level), "sh", "-c", f"{' && '.join(_mounts())} && {rlimits}; {inside}; exit $?"]
    return ["sh", "-c", f"{rlimits}; exec {inside}"]


def _drop(level: Level) -> list[str]:
    if not level.walls or (level.walls == "bwrap" and not level.uid):
        return []
    drop = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
    return drop + ([f"--reuid={user_id()}", f"--regid={user_id()}", "--clear-groups"] if level.uid else [])


def _interpreter(level: Level) -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{MOUNT}/python/bin/{version}" if level.walls else sys.executable


def _paths(level: Level, runner: str) -> list[str]:
    if level.walls:
        return [f"{MOUNT}/runner/{runner}", f"{MOUNT}/site"]
    return [str(RUNNERS / runner), sysconfig.get_path("purelib")]


def _binds() -> list[tuple[str, str]]:
    """The interpreter and its packages, bound to where an unprivileged uid may read them."""
    return [
        (sys.base_prefix, f"{MOUNT}/python"),
        (sysconfig.get_path("purelib"), f"{MOUNT}/site"),
        (str(RUNNERS), f"{MOUNT}/runner"),
    ]


def _bwrap(level: Level) -> list[str]:
    # root needs no user namespace, and in one it could not change its uid
    user = [] if level.uid else ["--unshare-user", "--cap-drop", "ALL"]
    keep = [part for cap in ("SETUID", "SETGID", "SETPCAP") for part in ("--cap-add", f"CAP_{cap}")]
    caps = ["--cap-drop", "ALL", *keep] if level.uid else []
    hide = [
        part
        for path in HIDDEN
        if Path(path).is_dir() and path != "/dev/shm"
        for part in ("--size", "4096", "--tmpfs", path, "--remount-ro", path)
    ]
    binds = [part for source, target in _binds() for part in ("--ro-bind", source, target)]
    return [
        *("--die-with-parent", "--as-pid-1", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"),
        *user, *caps,
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"),
        *hide,
        *("--size", "65536", "--tmpfs", MOUNT, *binds, "--remount-ro", MOUNT),
        *("--chdir", "/"),
    ]  # fmt: skip


def _unshare(level: Level) -> list[str]:
    spaces = ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *([] if level.uid else ["--user", "--map-root-user"]), *spaces]


def _mounts() -> list[str]:
    binds = _binds()
    return [
        f"mount -t tmpfs -o size=64k,mode=755 tmpfs {MOUNT}",
        f"mkdir {' '.join(target for _, target in binds)}",
        *(f"mount --bind {shlex.quote(source)} {target}" for source, target in binds),
        *(f"test ! -d {path} || mount -t tmpfs -o size=4k,mode=755,ro tmpfs {path}" for path in HIDDEN),
        READ_ONLY,
        f"mount -o remount,ro {MOUNT}",
    ]
