"""`evictbench logs`: what the engines of a job, or its driver on a cluster, have printed."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import cluster, control
from orchestrator.errors import UserError, closest
from orchestrator.spec import JobSpec


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--engine", help="Only this engine's output; without it, the last lines of every engine.")
@click.option("--lines", default=20, show_default=True, type=click.IntRange(min=1), help="Last lines of each engine.")
@click.option("--address", help="The driver's output instead, from Ray's job API: http://HEAD:8265.")
@click.option("--follow", is_flag=True, help="With --address: go on until the driver ends.")
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
@click.pass_context
def command(
    ctx: click.Context,
    job: Path,
    engine: str | None,
    lines: int,
    address: str | None,
    follow: bool,
    store: Path | None,
) -> None:
    """Output of JOB: its engines' from the store, or its driver's from the cluster at --address."""
    if address is not None:
        ctx.exit(_driver_logs(JobSpec.load(job).name, address, follow))
    if follow:
        raise click.UsageError("--follow goes with --address.")
    found = {path.stem: path for path in sorted((control.find(job, store).directory / "logs").glob("*.log"))}
    if engine is not None and engine not in found:
        listed = ", ".join(found) or "none"
        raise UserError(f"no engine '{engine}' has a log; engines: {listed}.{closest(engine, found)}")
    if not found:
        click.echo("No engine has been started yet.")
    for name, path in found.items():
        if engine in (None, name):
            text = path.read_text(errors="replace").splitlines()
            click.secho(f"== {name} ({path})", bold=True)
            click.echo("\n".join(text if engine else text[-lines:]))


def _driver_logs(campaign: str, address: str, follow: bool) -> int:
    jobs = cluster.jobs(address)
    name = jobs.latest(campaign)
    if follow:
        return jobs.follow(name, lambda text: click.echo(text, nl=False))
    click.echo(jobs.logs(name), nl=False)
    return 0
