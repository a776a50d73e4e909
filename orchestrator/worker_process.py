"""An engine worker as a process of its own: `python -m orchestrator.worker_process FD`.

Speaks pickled messages over an inherited socket with the driver that started it, and with nobody else. When the driver
dies the socket ends, and so does this process with all its children: it leads a process group of its own.
"""

from __future__ import annotations

import importlib
import os
import platform
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from orchestrator.backend import Launch
from orchestrator.environment import installation, mismatch
from orchestrator.errors import UserError
from orchestrator.store.writer import Store
from orchestrator.worker_loop import WorkerLoop
from workers import gpus
from workers.api import Engine, EngineSpec
from workers.errors import Fatal, Retryable

REPORT_SECONDS = 0.5


def open_worker(launch: Launch, given: tuple[str, ...]) -> WorkerLoop:
    """Open the store, begin loading the engine, and return the loop. Raises UserError for an unusable store.

    given  GPUs that this process may use, by index or id; empty on a machine without
    """
    store = visible_store(launch.store)
    campaign = store.campaign(launch.campaign)

    def beat(facts: Mapping[str, object]) -> None:
        with suppress(OSError):  # a full disk is reported by the commit that it stops
            campaign.heartbeat(launch.worker, facts)

    def create(spec: EngineSpec) -> Engine:
        if (differs := mismatch(installation(), launch.installation)) is not None:
            raise Fatal(differs)
        _require_files(spec)
        gpus.require_free(given, platform.node())
        # Imported by the loop's thread, so that what an engine's import raises is reported like any failed start.
        module, _, name = launch.create.partition(":")
        engine: Engine = getattr(importlib.import_module(module), name)(spec)
        return engine

    physical = gpus.ids(given, gpus.here() if given else ())
    loop = WorkerLoop(launch.worker, launch.spec, store, beat, launch.stuck_seconds, physical)
    loop.start(create)
    return loop


def visible_store(place: str) -> Store:
    """The store as this node sees it; called before anything is written below its place.

    Raises UserError naming the node.
    """
    try:
        return Store.open(place, create=False)
    except UserError as error:
        raise UserError(
            f"node {platform.node()} does not see the store {place}: {error} Put it where every node sees it under the "
            "same path."
        ) from error


def _require_files(spec: EngineSpec) -> None:
    """Raises Retryable for a model that is not on this node; it may be on another."""
    if Path(spec.model).is_absolute() and not Path(spec.model).exists():
        raise Retryable(f"node {platform.node()} does not have the model files {spec.model}. Put them on every node.")


def redirect_output(path: str) -> None:
    """Send this process's stdout and stderr, and those of children to come, to a file."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)


def set_threads(threads: int) -> None:
    """Give the engine its share of the cores, before anything loads a thread pool."""
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def end_group() -> None:
    """Kill this process and every child of it."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _listen(connection: Connection, loop: WorkerLoop) -> None:
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            end_group()
            return
        if order is None:
            _close(loop)
        loop.order(order)


def _close(loop: WorkerLoop) -> None:
    loop.close()
    os._exit(0)


def main(descriptor: int) -> None:
    """Serve one driver until it says stop or is gone."""
    connection = Connection(descriptor)
    launch: Launch = connection.recv()
    set_threads(launch.threads)
    redirect_output(launch.log)
    loop = open_worker(launch, gpus.given())
    threading.Thread(target=_listen, args=(connection, loop), name="orders", daemon=True).start()
    while True:
        try:
            connection.send(loop.report(REPORT_SECONDS))
        except OSError:
            end_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
