"""`evictbench submit`: run a job on a Ray cluster and follow it; the cluster goes on when you leave.

Exit status: as `evictbench run`, or 0 with --no-follow.
"""

from __future__ import annotations

import signal
from pathlib import Path

import click

from orchestrator import cluster
from orchestrator.grid import expand
from orchestrator.spec import JobSpec


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--address", required=True, help="Ray's job API: http://HEAD:8265.")
@click.option("--store", help="Use this store instead of execution.store; absolute, and seen by every node.")
@click.option(
    "--wait-for-nodes",
    default=0.0,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="Wait for nodes that the engines need and the cluster does not have yet; without it, refuse at once.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Show the driver's output until it ends.")
@click.pass_context
def command(
    ctx: click.Context, job: Path, address: str, store: str | None, wait_for_nodes: float, follow: bool
) -> None:
    """Run what is missing of JOB on the cluster at --address.

    The job file and the policy and data files that it names travel with it; models and evictbench are on the nodes.
    Submitting again resumes, as `evictbench run` does. Ctrl-C stops following; `evictbench cancel` stops the job.
    """
    spec = JobSpec.load(job)
    expand(spec)  # every mistake that can be known here is reported here, not in a log on the cluster
    jobs = cluster.jobs(address)
    options = ("--wait-for-nodes", f"{wait_for_nodes:g}") if wait_for_nodes else ()
    name = jobs.submit(spec, store or spec.execution.store, options)
    click.echo(f"Submitted {name} to {address}.")
    # A shell that starts commands in the background makes them ignore Ctrl-C; following must end by it all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not follow:
        click.echo(f"Follow it with: evictbench logs {job} --address {address}")
        return
    try:
        ctx.exit(jobs.follow(name, lambda text: click.echo(text, nl=False)))
    except KeyboardInterrupt:
        click.echo(f"\n{name} goes on. Stop it with: evictbench cancel {job}", err=True)
        ctx.exit(130)
