"""Engine workers as Ray actors: the only module that imports Ray; use it through orchestrator.cluster.connect.

Plain actors that the driver owns: no restarts and no retries by Ray (the scheduler counts attempts), one message in
flight per worker, every wait with a deadline, nothing detached. When the driver dies, Ray ends what it owned.

An engine inside one node is one actor with that many GPUs. One that spans nodes gets a placement group whose bundles
are pinned to the nodes that the scheduler chose; its actor sits in the first bundle, and vLLM's Ray executor puts a
rank into each. A place that does not come in time is given up, the group with it, and the worker is Lost, unplaced.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray._private.worker
from ray._private.state import available_resources_per_node
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from orchestrator import guardian
from orchestrator.backend import Launch, Lost, Machine
from orchestrator.errors import UserError
from orchestrator.grading import Graded, GradeWork, grade
from orchestrator.messages import Order, Report, Seat
from orchestrator.worker_process import REPORT_SECONDS, open_worker, redirect_output, set_threads, visible_store

PLACE_SECONDS = 300.0
"""How long an engine waits for a place that other work on the cluster holds."""

_GET_SECONDS = 10.0
_NODE_LABEL = "ray.io/node-id"
_KIND_LABEL = "ray.io/accelerator-type"
_KIND_RESOURCE = "accelerator_type:"
_OBJECT_STORE_BYTES = 80 * 1024**2


class EngineWorker:
    """The actor: an engine, its store, and the process they live in."""

    def __init__(self, launch: Launch) -> None:
        set_threads(launch.threads)
        visible_store(launch.store)
        redirect_output(launch.log)
        given = tuple(str(gpu) for gpu in ray.get_gpu_ids())
        wanted = launch.spec.tp * launch.spec.pp
        if given and len(given) != wanted:
            raise RuntimeError(f"an engine of {wanted} GPUs was given {len(given)}: {', '.join(given)}")
        self._loop = open_worker(launch, given)

    def exchange(self, order: Order) -> Report:
        """Take an order, give the next report; returns within a second."""
        self._loop.order(order)
        return self._loop.report(REPORT_SECONDS)

    def close(self) -> None:
        """Close the engine; the driver kills the process afterwards."""
        self._loop.close()


@dataclass(slots=True)
class _Actor:
    """handle is None while its group is not granted; `answered` once it has been heard."""

    launch: Launch
    seats: tuple[Seat, ...]
    deadline: float
    handle: Any = None
    group: PlacementGroup | None = None
    pending: Any = None
    orders: list[Order] = field(default_factory=list)
    closing: bool = False
    answered: bool = False


class RayBackend:
    """Implements orchestrator.backend.Backend on a cluster, or on a local one that lives as long as this object."""

    def __init__(self, address: str | None = None, place_seconds: float = PLACE_SECONDS) -> None:
        """Raises UserError when there is no cluster at the address, or a local one does not come up.

        place_seconds  how long an engine may wait for GPUs that something else on the cluster holds
        """
        self._place_seconds = place_seconds
        self._aside: list[_Actor] = []
        self._lost: list[Lost] = []
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
        """As Backend.machines; a node with GPUs has as many places, one with CPUs alone has one."""
        return [_machine(node) for node in ray.nodes() if node["Alive"]]

    def start(self, launch: Launch, node: str, seats: Sequence[Seat] = ()) -> None:
        """As Backend.start."""
        places = launch.spec.tp * launch.spec.pp
        actor = _Actor(launch, tuple(seats) or (Seat(node, places),), time.monotonic() + self._place_seconds)
        self._actors[launch.worker] = actor
        kind = "GPU" if _gpus(node) else "CPU"
        if len(actor.seats) == 1:
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            actor.handle = _remote(launch, strategy, places if kind == "GPU" else 0)
            return
        nodes = [seat.node for seat in actor.seats for _ in range(seat.places)]
        # No name and no lifetime of its own: the group goes with the driver.
        actor.group = placement_group(
            [{kind: 1.0}] * len(nodes), strategy="PACK", bundle_label_selector=[{_NODE_LABEL: name} for name in nodes]
        )

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
        for name, actor in list(self._actors.items()):
            self._place(name, actor)
        found, self._lost = self._lost, []
        for actor in self._actors.values():
            if actor.handle is not None and actor.pending is None:
                actor.pending = actor.handle.exchange.remote(_merged(actor.orders))
                actor.orders = []
        waiting = [*(actor.pending for actor in self._actors.values() if actor.handle is not None), *self._grading]
        return [*found, *self._arrived(waiting, 0.0 if found else seconds)]

    def _arrived(self, waiting: list[Any], seconds: float) -> list[Report | Lost | Graded]:
        if not waiting:
            time.sleep(seconds)
            return []
        ready, _ = ray.wait(waiting, num_returns=1, timeout=seconds)
        ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0) if ready else ([], [])
        names = {actor.pending: name for name, actor in self._actors.items() if actor.handle is not None}
        return [self._grade_done(ref) if ref in self._grading else self._receive(names[ref], ref) for ref in ready]

    def stop(self, worker: str, hard: bool) -> None:
        """As Backend.stop."""
        actor = self._actors.get(worker)
        if actor is None:
            return
        if actor.handle is None or (hard and not actor.answered):
            # Ray may not answer for an actor that was never placed.
            self._give_up(worker, "stopped before it was placed")
        elif hard:
            ray.kill(actor.handle, no_restart=True)
        elif not actor.closing:
            actor.closing = True
            actor.pending = actor.handle.close.remote()

    def set_aside(self, worker: str) -> None:
        """As Backend.set_aside."""
        if worker in self._actors:
            self._aside.append(self._actors.pop(worker))

    def close(self) -> None:
        """As Backend.close."""
        if ray.is_initialized():
            for actor in (*self._actors.values(), *self._aside):
                with suppress(RayError):
                    _end(actor)
            ray.shutdown()
        self._actors.clear()
        self._aside.clear()
        os.environ.pop(guardian.VARIABLE, None)
        if self._guardian is not None:
            with suppress(subprocess.TimeoutExpired):
                self._guardian.communicate(timeout=_GET_SECONDS)
            self._guardian = None

    def _place(self, name: str, actor: _Actor) -> None:
        """Start the actor of a group that was granted; give up a place that did not come in time."""
        if actor.group is not None and actor.handle is None and _granted(actor.group):
            strategy = PlacementGroupSchedulingStrategy(actor.group, 0, placement_group_capture_child_tasks=True)
            actor.handle = _remote(actor.launch, strategy, 0)
        waits = actor.handle is None or (actor.group is None and not actor.answered)
        if waits and time.monotonic() > actor.deadline and (short := _short(actor.seats)):
            self._give_up(name, f"no place within {self._place_seconds:.0f} s: {short}; other work holds the rest")

    def _give_up(self, name: str, reason: str) -> None:
        _end(self._actors.pop(name))
        self._lost.append(Lost(name, reason, unplaced=True))

    def _receive(self, name: str, ref: Any) -> Report | Lost:
        actor = self._actors[name]
        try:
            report: Report = ray.get(ref, timeout=_GET_SECONDS)
        except RayError as error:
            _end(self._actors.pop(name))
            return Lost(name, _reason(error))
        if actor.closing:
            _end(self._actors.pop(name))
            return Lost(name, "closed")
        actor.pending, actor.answered = None, True
        return report

    def _grade_done(self, ref: Any) -> Graded:
        work = self._grading.pop(ref)
        try:
            graded: Graded = ray.get(ref, timeout=_GET_SECONDS)
        except RayError as error:
            return Graded(work, _reason(error))
        return graded


def _machine(node: dict[str, Any]) -> Machine:
    gpus, cpus = int(node["Resources"].get("GPU", 0)), node["Resources"].get("CPU", 0)
    # Nodes that were started by hand may lack the label, and have the kind as a resource.
    kinds = [name.removeprefix(_KIND_RESOURCE) for name in node["Resources"] if name.startswith(_KIND_RESOURCE)]
    kind = node.get("Labels", {}).get(_KIND_LABEL, kinds[0] if kinds else "")
    return Machine(node["NodeID"], gpus or min(1, int(cpus)), {"host": node["NodeName"]}, kind if gpus else None)


def _gpus(node: str) -> bool:
    return any(n["NodeID"] == node and n["Resources"].get("GPU", 0) for n in ray.nodes())


def _remote(launch: Launch, strategy: Any, gpus: int) -> Any:
    options = {"num_gpus": gpus, "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
    return ray.remote(EngineWorker).options(**options, scheduling_strategy=strategy).remote(launch)


def _granted(group: PlacementGroup) -> bool:
    return bool(placement_group_table(group).get("state") == "CREATED")


def _short(seats: Sequence[Seat]) -> str:
    """Seats whose node has fewer GPUs free than they take; empty when all could be had."""
    free = available_resources_per_node()
    hosts = {node["NodeID"]: node["NodeName"] for node in ray.nodes() if node["Resources"].get("GPU")}
    there = [(hosts[s.node], int(free.get(s.node, {}).get("GPU", 0)), s.places) for s in seats if s.node in hosts]
    return ", ".join(f"node {host} has {have} of {need} GPUs free" for host, have, need in there if have < need)


def _end(actor: _Actor) -> None:
    """Kill the actor and whatever it started in its group; the group's GPUs are free afterwards."""
    if actor.handle is not None:
        ray.kill(actor.handle, no_restart=True)
    if actor.group is not None:
        remove_placement_group(actor.group)


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
    ours = f"{UserError.__module__}.{UserError.__qualname__}: "
    return lines[-1].removeprefix(ours) if lines else type(error).__name__
