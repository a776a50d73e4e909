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
@click.option(
    "--wait-for-nodes",
    default=0.0,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Wait for nodes that the engines need and the cluster does not have yet; without it, refuse at once.",
)
@click.option("--scale", type=float, help="Try it in small on the embedded model, as in 0.01.", metavar="SHARE")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="Answer Prometheus here; without it, nowhere.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of --metrics-port.")
@click.pass_context
def command(  # noqa: PLR0913  one parameter per option
    ctx: click.Context,
    job: Path,
    address: str | None,
    store: Path | None,
    backend: str,
    stuck_after: float,
    wait_for_nodes: float,
    scale: float | None,
    metrics_port: int | None,
    metrics_host: str,
) -> None:
    """Run what is missing of JOB: generate, commit, grade.

    What the store holds already is never made again, so the same command resumes a run that was stopped or killed, and
    extends one whose job has grown. With --scale the job runs in small under a name of its own: that share of its
    problems and samples, as the embedded model's own problems at the job's compression. Ctrl-C finishes what has
    started (at most 30 s); a second one stops at once.
    """
    if address is not None and backend == "local":
        raise click.UsageError("--address names a Ray cluster, so it does not go with --backend local.")

    def connect() -> Backend:
        return LocalBackend() if backend == "local" else cluster.connect(address)

    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    options = campaign.Options(stuck_seconds=stuck_after, scale=scale, metrics=metrics, node_seconds=wait_for_nodes)
    ctx.exit(campaign.run(job, Console(), connect, store, options))
