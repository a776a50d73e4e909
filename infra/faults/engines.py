"""An engine that takes faults from the storm: each waits as a file until one engine, with work in flight, claims it."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workers.api import Engine, EngineSpec, Generation
from workers.errors import OutOfMemory, Retryable
from workers.simulated import CostModel, SimulatedEngine

FOLDER = "EVICTBENCH_FAULTS"
"""Environment variable that names the folder of waiting faults."""

# A row takes about a second, so that most faults find something in flight.
COST = CostModel(step=4e-3, per_sequence=0.0, load=0.1)


def _hang() -> None:
    time.sleep(3600)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _raise_oom() -> None:
    raise OutOfMemory("CUDA out of memory (injected)")


def _raise_nan() -> None:
    raise Retryable("logits are NaN (injected)")


def _fill_disk() -> None:
    # From here on this process cannot write a Parquet file; heartbeats still fit.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


def _slow_disk() -> None:
    fsync = os.fsync

    def slow(handle: Any) -> None:
        time.sleep(1.0)
        fsync(handle)

    setattr(os, "fsync", slow)  # noqa: B010  mypy refuses to assign to a function


def _drop_heartbeats() -> None:
    from orchestrator.store.campaign import Campaign  # noqa: PLC0415  only the process that this fault hits

    def silent(campaign: object, engine_id: object, facts: object) -> None:
        """In the place of a method."""

    setattr(Campaign, "heartbeat", silent)  # noqa: B010  mypy refuses to assign to a method


FAULTS: Mapping[str, Callable[[], None]] = {
    "engine-hangs": _hang,
    "engine-crashes": _crash,
    "out-of-memory": _raise_oom,
    "nan-logits": _raise_nan,
    "disk-full": _fill_disk,
    "disk-slow": _slow_disk,
    "heartbeats-lost": _drop_heartbeats,
}


class Struck:
    """In front of an engine: the storm's faults in the middle of its steps."""

    def step(self) -> list[Generation]:
        """One step, or the fault that waits for it."""
        if self.counters().running:  # type: ignore[attr-defined]
            for name, fault in FAULTS.items():
                if claim(name):
                    fault()
        return super().step()  # type: ignore[misc]


def claim(name: str) -> bool:
    """True for the one process that takes the waiting fault of that name; it leaves `<name>.hit` behind."""
    waiting = Path(os.environ[FOLDER]) / name
    with suppress(FileNotFoundError):
        waiting.rename(waiting.with_suffix(f".hit-{os.getpid()}"))
        return True
    return False


def create(spec: EngineSpec) -> Engine:
    """For Launch.create."""
    if spec.kind == "simulated":
        return type("StruckSimulated", (Struck, SimulatedEngine), {})(spec, COST)
    from workers.vllm_engine.engine import VllmEngine  # noqa: PLC0415  brings torch and vllm

    return type("StruckVllm", (Struck, VllmEngine), {})(spec)
