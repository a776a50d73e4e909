"""Control groups for one run: a cap on all its processes and all their memory together, which rlimits cannot give.

Version 1 (a hierarchy per controller) and version 2 (one) both work where this process may make a group inside its own;
elsewhere there are none, and levels without them are used.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# The walls themselves (sh, bwrap or unshare, setpriv) count as processes of the group.
SPARE_PROCESSES = 8
SPARE_BYTES = 256 * 1024**2
# Enters every group given before `--`, then becomes the rest.
ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 70; shift; done; shift; exec "$@"'

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Group:
    """One run's groups: the same folder twice under version 2."""

    pids: Path
    memory: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Each folder once."""
        return tuple(dict.fromkeys((self.pids, self.memory)))

    def prefix(self) -> list[str]:
        """What a command starts with to run inside."""
        return ["sh", "-c", ENTER, "sh", *map(str, self.folders), "--"]

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the group for memory."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                for line in (self.memory / name).read_text().splitlines():
                    key, _, count = line.partition(" ")
                    if key == "oom_kill" and int(count):
                        return True
        return False

    def close(self, seconds: float = 5.0) -> None:
        """Kill what is left in the group and remove it."""
        deadline = time.monotonic() + seconds
        for folder in self.folders:
            while folder.is_dir():
                for pid in _members(folder):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.005)


def create(processes: int, memory_bytes: int) -> Group:
    """A new group inside this process's own. Raises OSError where that is not allowed or a controller is missing."""
    name = f"evictbench-{os.getpid()}-{next(_numbers)}"
    places = _places()
    group = Group(places["pids"] / name, places["memory"] / name)
    try:
        for folder in group.folders:
            folder.mkdir()
        _write(group.pids / "pids.max", processes + SPARE_PROCESSES)
        limits = [file for file in ("memory.max", "memory.limit_in_bytes") if (group.memory / file).exists()]
        _write(group.memory / limits[0], memory_bytes + SPARE_BYTES)
    except (OSError, IndexError) as error:
        group.close(0.0)
        raise OSError(f"no control group: {error}") from error
    return group


def _places() -> dict[str, Path]:
    """Folder of this process's own group per controller."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in ("pids", "memory"):
            if controller in controllers.split(","):
                found[controller] = ROOT / controller / path.lstrip("/")
            elif not controllers and (ROOT / "cgroup.controllers").exists():
                found.setdefault(controller, ROOT / path.lstrip("/"))
    if len(found) < 2:
        raise OSError("no pids and memory controllers")
    return found


def _members(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _write(file: Path, value: int) -> None:
    file.write_text(f"{value}\n")
