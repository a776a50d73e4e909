"""`python -m infra.faults`: storms by seed range, and the tables of docs/faults.md."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from infra.faults import hosts, tally
from infra.faults.storm import KINDS, Storm, World
from infra.faults.tally import Results, Tally


@click.command()
@click.option("--seeds", default="0:100", show_default=True, help="Range FIRST:END of storms; each is one campaign.")
@click.option("--backend", type=click.Choice(KINDS), default="local", show_default=True, help="Where engines run.")
@click.option("--faults", default=0, help="Stop once so many faults have counted, earlier runs included; 0 runs all.")
@click.option("--results", type=click.Path(path_type=Path), default=Path(".cache/faults"), show_default=True)
@click.option("--write", "target", type=click.Path(path_type=Path), help="Put the tables of all results on this page.")
def main(seeds: str, backend: str, faults: int, results: Path, target: Path | None) -> None:
    """Run the storms of a range that no earlier run has finished. Exit status 1 when anything went wrong.

    local = processes of this machine, ray = a cluster of a head and three hosts in network namespaces (needs root),
    vllm = real engines on the CPU. A storm is recorded when it ends, so that the same command resumes.
    """
    first, _, end = seeds.partition(":")
    console, recorded = Console(width=140), Results(results)
    if backend == "ray" and (reason := hosts.refusal()) is not None:
        raise click.ClickException(f"no hosts for Ray: {reason}")
    # So that hosts go away by every way out but SIGKILL.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        world = World(backend)
        for seed in range(int(first), int(end)):
            done = recorded.storms(backend)
            if seed in done or (faults and tally.total(done.values()).faults >= faults):
                continue
            if backend == "ray" and world.hosts is None:
                root = Path(tempfile.mkdtemp(prefix="evh", dir=os.environ.get("RAY_TMPDIR", "/tmp")))
                try:
                    world.hosts = stack.enter_context(hosts.Hosts(root, 3, world.environment))
                except hosts.HostsFailed as error:
                    raise click.ClickException(f"no hosts for Ray: {error}") from error
            found = Tally()
            try:
                Storm(world, seed, found).run()
            except hosts.HostsFailed as error:
                raise click.ClickException(f"seed {seed} is not recorded: {error}") from error
            recorded.record(backend, seed, found)
            state = "clean" if found.clean else f"BROKEN: {'; '.join(found.broken)}"
            console.print(f"seed {seed}: {found.faults} faults, {found.rows:,} rows, {found.seconds:,.0f} s, {state}")
    everything = {name: tally.total(recorded.storms(name).values()) for name in recorded.backends()}
    console.print(tally.page(everything), markup=False, highlight=False, soft_wrap=True)
    if target is not None:
        tally.write(target, everything)
    sys.exit(0 if backend in everything and everything[backend].clean else 1)


if __name__ == "__main__":
    main()
