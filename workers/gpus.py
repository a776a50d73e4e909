"""The GPUs that a process was given: what they are, and who else holds their memory. Asks nvidia-smi; no library.

Checked before an engine loads: a process that outlived its engine keeps tens of GiB, and the next engine on that GPU
would fail deep inside its start, or run with a smaller pool than its neighbours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.errors import Retryable

GIB = 1024**3
FREE_SHARE = 0.9
"""Of a GPU's memory, what must be free: the pool that vLLM takes by default."""

_GRACE_SECONDS = 30.0
_LOOK_SECONDS = 2.0
_ASK_SECONDS = 20.0


class GpuBusy(Retryable):
    """Other processes hold memory of GPUs that this engine was given; `gpus` names those."""

    def __init__(self, gpus: tuple[str, ...], text: str) -> None:
        super().__init__(text)
        self.gpus = gpus


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of a GPU, bytes; None where the driver does not tell."""

    pid: int
    name: str
    held: int | None

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})" + (f" {self.held / GIB:.1f} GiB" if self.held is not None else "")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this machine; total and free in bytes, None where the driver does not tell; largest holder first."""

    index: str
    uuid: str
    name: str
    total: int | None
    free: int | None
    holders: tuple[Holder, ...] = ()


def given(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES names, in its order; empty where it is not set: a machine without GPUs, or all."""
    words = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return tuple(word.strip() for word in words if word.strip())


def here() -> tuple[Gpu, ...]:
    """Every GPU of this machine; empty without a driver, or where it does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    holders: dict[str, list[Holder]] = {}
    for uuid, pid, name, held in _ask(command, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory", 4):
        holders.setdefault(uuid, []).append(Holder(int(pid), name.rpartition("/")[2], _mib(held)))
    gpus = []
    for index, uuid, name, total, free in _ask(command, "--query-gpu=index,uuid,name,memory.total,memory.free", 5):
        mine = sorted(holders.get(uuid, ()), key=lambda holder: -(holder.held or 0))
        gpus.append(Gpu(index, uuid, name, _mib(total), _mib(free), tuple(mine)))
    return tuple(gpus)


def chosen(names: Sequence[str], gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Those of `gpus` that `names` (indices or ids, as CUDA reads them) mean; slices of a GPU are left out."""
    return tuple(gpu for name in names for gpu in gpus if name == gpu.index or gpu.uuid.startswith(name))


def ids(names: Sequence[str], gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The physical id of each name, or the name itself where the driver does not know it."""
    return tuple(next((gpu.uuid for gpu in chosen([name], gpus)), name) for name in names)


def busy(gpus: Sequence[Gpu], share: float = FREE_SHARE) -> tuple[Gpu, ...]:
    """Those with less than `share` of their memory free, as far as the driver tells."""
    return tuple(gpu for gpu in gpus if gpu.total and gpu.free is not None and gpu.free < share * gpu.total)


def require_free(names: Sequence[str], node: str, grace: float = _GRACE_SECONDS) -> None:
    """Wait up to `grace` seconds for the GPUs to be free: an engine that just ended takes a moment to let go.

    Raises GpuBusy naming GPU, bytes and the processes that hold them.
    """
    if not names:
        return
    deadline = time.monotonic() + grace
    while held := busy(chosen(names, here())):
        if time.monotonic() >= deadline:
            raise GpuBusy(tuple(gpu.uuid for gpu in held), "; ".join(_described(gpu, node) for gpu in held))
        time.sleep(min(_LOOK_SECONDS, grace))


def _described(gpu: Gpu, node: str) -> str:
    who = ", ".join(map(str, gpu.holders)) or "processes that the driver does not show (another container?)"
    free, total = (gpu.free or 0) / GIB, (gpu.total or 0) / GIB
    return (
        f"GPU {gpu.index} ({gpu.name}, {gpu.uuid}) of node {node} has {free:.1f} of {total:.1f} GiB free, "
        f"an engine needs {FREE_SHARE * total:.1f}; held by {who}"
    )


def _ask(command: str, query: str, columns: int) -> list[list[str]]:
    """Rows of the driver's answer with that many columns; none where it fails."""
    try:
        done = subprocess.run(
            [command, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == columns]


def _mib(text: str) -> int | None:
    return int(text) * 1024**2 if text.isdigit() else None
