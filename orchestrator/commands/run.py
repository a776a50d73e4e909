"""`evictbench run`: run what is missing of a job, grade it, and stop or resume at will.

Exit status: 0 all rows are committed and graded, 1 some are parked or missing, 2 the job cannot run, 130 stopped.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from orchestrator import campaign, cluster
from orchestrator.backend import Backend
from orchestrator.backend_local import LocalBackend


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--address", help="Ray cluster to run on; without it, a local one that lives as long as the command.")
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
@click.option(
    "--backend", type=click.Choice(["ray", "local"]), default="ray", show_default=True, help="local: processes, no Ray."
)
@click.option(
    "--stuck-after",
    default=300.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Seconds without a token after which an engine is taken for stuck and replaced.",
)
@click.pass_context
def command(
    ctx: click.Context, job: Path, address: str | None, store: Path | None, backend: str, stuck_after: float
) -> None:
    """Run what is missing of JOB: generate, commit, grade.

    What the store holds already is never made again, so the same command resumes a run that was stopped or killed, and
    extends one whose job has grown. Ctrl-C finishes what has started (at most 30 s); a second one stops at once.
    """
    if address is not None and backend == "local":
        raise click.UsageError("--address names a Ray cluster, so it does not go with --backend local.")

    def connect() -> Backend:
        return LocalBackend() if backend == "local" else cluster.connect(address)

    ctx.exit(campaign.run(job, Console(), connect, store, stuck_after))
