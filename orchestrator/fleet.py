"""Which machines of a cluster a job may use, and whether its engines fit on them at all: asked before anything starts.

An engine takes TP x PP places on one machine (`mp` ranks in one process tree), or equal parts of them on
`resources.nodes` machines through a placement group (orchestration.md section 2).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from orchestrator.backend import Backend, Machine
from orchestrator.errors import UserError, closest
from workers.api import EngineSpec

ANY = "any"

_LOOK_SECONDS = 1.0


def usable(machines: Sequence[Machine], gpu: str, gpus_only: bool = False) -> list[Machine]:
    """Machines that may hold engines of a job with `resources.gpu`.

    Where any machine has GPUs, or had them (`gpus_only`), one without holds no engine: it is a head, or there for
    grading. A GPU whose kind nothing tells is taken for the one that is wanted.
    """
    with_gpus = [machine for machine in machines if machine.gpu is not None]
    if gpu == ANY:
        return [machine for machine in (with_gpus if gpus_only else with_gpus or machines) if machine.units]
    return [machine for machine in with_gpus if machine.units and (machine.gpu or gpu).lower() == gpu.lower()]


def refusal(engines: Iterable[EngineSpec], machines: Sequence[Machine], gpu: str) -> str | None:
    """Why some engine can never start on these machines, with what is there and the next step; None if all can."""
    fitting = usable(machines, gpu)
    if not fitting:
        return _no_machine(machines, gpu)
    largest = max(fitting, key=lambda machine: machine.units)
    unit = "GPU" if largest.gpu is not None else "place"
    for spec in engines:
        share = -(-spec.tp * spec.pp // spec.nodes)
        large = sum(machine.units >= share for machine in fitting)
        if large >= spec.nodes:
            continue
        if largest.units < share:
            what = f"{share} {unit}s on one node" if spec.nodes == 1 else f"{share} {unit}s on each of its nodes"
            hint = "" if largest.gpu is None else " Lower resources.tp or pp, or spread an engine with resources.nodes."
            return (
                f"resources: an engine of tp {spec.tp} x pp {spec.pp} needs {what}; the largest node, "
                f"{_host(largest)}, has {largest.units}.{hint or ' A machine without GPUs runs one engine at a time.'}"
            )
        return (
            f"resources.nodes: an engine spans {spec.nodes} nodes with {share} {unit}s each; {large} of "
            f"{len(fitting)} nodes have that many (the largest, {_host(largest)}, has {largest.units}). "
            "Lower resources.nodes, or bring up more nodes."
        )
    return None


def gather(
    backend: Backend,
    engines: Sequence[EngineSpec],
    gpu: str,
    seconds: float,
    say: Callable[[str], None],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Return once every engine fits somewhere, waiting at most `seconds` for nodes that are still coming up.

    Raises UserError with the reason when they do not come.
    """
    deadline, said = time.monotonic() + seconds, False
    while (reason := refusal(engines, backend.machines(), gpu)) is not None and not stopped():
        if time.monotonic() >= deadline:
            waited = f" (waited {seconds:.0f} s for nodes)" if seconds else ""
            raise UserError(f"{reason}{waited}")
        if not said:
            say(f"waiting up to {seconds:.0f} s for nodes: {reason}")
            said = True
        time.sleep(_LOOK_SECONDS)


def _no_machine(machines: Sequence[Machine], gpu: str) -> str:
    if gpu == ANY:
        return "the cluster has no node that can hold an engine: no GPU, and no CPU that Ray may use. Bring up a node."
    kinds = Counter("no GPU" if machine.gpu is None else machine.gpu or "unknown GPU" for machine in machines)
    found = ", ".join(f"{kind} ({count} node{'s' * (count != 1)})" for kind, count in sorted(kinds.items()))
    close = closest(gpu, [machine.gpu for machine in machines if machine.gpu])
    return (
        f"resources.gpu: no node has a {gpu}; the cluster has {found or 'no node'}.{close} Name one of these, or any."
    )


def _host(machine: Machine) -> str:
    return str(machine.facts.get("host", machine.name))
