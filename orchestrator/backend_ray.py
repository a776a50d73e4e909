"""Engine workers as Ray actors: the only module that imports Ray; use it through orchestrator.cluster.connect.

Plain actors that the driver owns: no restarts and no retries by Ray (the scheduler counts attempts), one message in
flight per worker, every wait with a deadline, nothing detached. When the driver dies, Ray ends what it owned.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray._private.worker
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator import guardian
from orchestrator.backend import Launch, Lost, Machine
from orchestrator.errors import UserError
from orchestrator.grading import Graded, GradeWork, grade
from orchestrator.messages import Order, Report
from orchestrator.worker_process import REPORT_SECONDS, open_worker, redirect_output, set_threads

_GET_SECONDS = 10.0
_OBJECT_STORE_BYTES = 80 * 1024**2


class EngineWorker:
    """The actor: an engine, its store, and the process they live in."""

    def __init__(self, launch: Launch) -> None:
        set_threads(launch.threads)
        redirect_output(launch.log)
        self._loop = open_worker(launch)

    def exchange(self, order: Order) -> Report:
        """Take an order, give the next report; returns within a second."""
        self._loop.order(order)
        return self._loop.report(REPORT_SECONDS)

    def close(self) -> None:
        """Close the engine; the driver kills the process afterwards."""
        self._loop.close()


@dataclass(slots=True)
class _Actor:
    handle: Any
    pending: Any = None
    orders: list[Order] = field(default_factory=list)
    closing: bool = False


class RayBackend:
    """Implements orchestrator.backend.Backend on a cluster, or on a local one that lives as long as this object."""

    def __init__(self, address: str | None = None) -> None:
        """Raises UserError when there is no cluster at the address, or a local one does not come up."""
        self._actors: dict[str, _Actor] = {}
        self._grading: dict[Any, GradeWork] = {}
        self._guardian: subprocess.Popen[bytes] | None = None
        try:
            if address is not None:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                self._start_local()
            # Deaths of workers come to us as Lost, with a reason; Ray's own paragraphs about them would hide that.
            ray._private.worker._worker_logs_enabled = False
        except Exception as error:  # a node that starts too slowly is a bare Exception of Ray's
            self.close()
            where = f"the cluster at {address}" if address is not None else "a local cluster"
            raise UserError(f"Ray cannot use {where}: {error}") from error

    def _start_local(self) -> None:
        # Socket paths are limited to about 100 characters, so neither a user's TMPDIR nor a long name.
        scratch = tempfile.mkdtemp(prefix="evb", dir=os.environ.get("RAY_TMPDIR", "/tmp"))
        mark = Path(scratch).name
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.guardian", mark, scratch], stdin=subprocess.PIPE, process_group=0
        )
        os.environ[guardian.VARIABLE] = mark
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=scratch,
        )

    def machines(self) -> list[Machine]:
        """As Backend.machines; a node with GPUs has as many places, one without has one."""
        nodes = [node for node in ray.nodes() if node["Alive"]]
        return [Machine(n["NodeID"], int(n["Resources"].get("GPU", 0)) or 1, {"host": n["NodeName"]}) for n in nodes]

    def start(self, launch: Launch, node: str) -> None:
        """As Backend.start."""
        gpus = _gpus(node)
        options = {
            "num_gpus": launch.spec.tp * launch.spec.pp if gpus else 0,
            "num_cpus": 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        actor = _Actor(ray.remote(EngineWorker).options(**options).remote(launch))
        self._actors[launch.worker] = actor

    def send(self, worker: str, order: Order) -> None:
        """As Backend.send."""
        if worker in self._actors:
            self._actors[worker].orders.append(order)

    def graders(self) -> int:
        """As Backend.graders: a CPU of the cluster each."""
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def grade(self, work: GradeWork) -> None:
        """As Backend.grade."""
        task = ray.remote(grade).options(num_cpus=1, max_retries=0)
        self._grading[task.remote(work)] = work

    def poll(self, seconds: float) -> list[Report | Lost | Graded]:
        """As Backend.poll."""
        for actor in self._actors.values():
            if actor.pending is None:
                actor.pending = actor.handle.exchange.remote(_merged(actor.orders))
                actor.orders = []
        waiting = [*(actor.pending for actor in self._actors.values()), *self._grading]
        if not waiting:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(waiting, num_returns=1, timeout=seconds)
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0) if ready else ([], [])
        names = {actor.pending: name for name, actor in self._actors.items()}
        return [self._grade_done(ref) if ref in self._grading else self._receive(names[ref], ref) for ref in ready]

    def stop(self, worker: str, hard: bool) -> None:
        """As Backend.stop."""
        actor = self._actors.get(worker)
        if actor is None:
            return
        if hard:
            ray.kill(actor.handle, no_restart=True)
        elif not actor.closing:
            actor.closing = True
            actor.pending = actor.handle.close.remote()

    def close(self) -> None:
        """As Backend.close."""
        if ray.is_initialized():
            for actor in self._actors.values():
                with suppress(RayError):
                    ray.kill(actor.handle, no_restart=True)
            ray.shutdown()
        self._actors.clear()
        os.environ.pop(guardian.VARIABLE, None)
        if self._guardian is not None:
            with suppress(subprocess.TimeoutExpired):
                self._guardian.communicate(timeout=_GET_SECONDS)
            self._guardian = None

    def _receive(self, name: str, ref: Any) -> Report | Lost:
        actor = self._actors[name]
        try:
            report: Report = ray.get(ref, timeout=_GET_SECONDS)
        except RayError as error:
            del self._actors[name]
            return Lost(name, _reason(error))
        if actor.closing:
            ray.kill(actor.handle, no_restart=True)
            del self._actors[name]
            return Lost(name, "closed")
        actor.pending = None
        return report

    def _grade_done(self, ref: Any) -> Graded:
        work = self._grading.pop(ref)
        try:
            graded: Graded = ray.get(ref, timeout=_GET_SECONDS)
        except RayError as error:
            return Graded(work, _reason(error))
        return graded


def _gpus(node: str) -> bool:
    return any(n["NodeID"] == node and n["Resources"].get("GPU", 0) for n in ray.nodes())


def _merged(orders: list[Order]) -> Order:
    return Order(
        assign=tuple(a for order in orders for a in order.assign),
        withdraw=tuple(c for order in orders for c in order.withdraw),
        drain=any(order.drain for order in orders),
    )


def _reason(error: RayError) -> str:
    """The telling part of Ray's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("SYSTEM_ERROR" in line for line in lines):
        return "engine process died (killed, out of memory, or crashed)"
    return lines[-1] if lines else type(error).__name__
