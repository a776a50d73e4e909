"""`evictbench resume`: go on with a paused job."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import control
from orchestrator.store.campaign import Control


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
def command(job: Path, store: Path | None) -> None:
    """Go on with JOB after `evictbench pause`. A job that nobody drives any more is resumed by `evictbench run`."""
    heard = control.ask(control.find(job, store), Control.RUN)
    click.echo(f"Asked {heard} to go on.")
