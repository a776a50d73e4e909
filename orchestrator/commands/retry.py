"""`evictbench retry`: put parked chunks of a running job back in line."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import control
from orchestrator.store.campaign import Control


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
def command(job: Path, store: Path | None) -> None:
    """Give the parked chunks of JOB all their attempts again while it runs.

    A job that nobody drives any more retries them with `evictbench run`.
    """
    heard = control.ask(control.find(job, store), Control.RETRY)
    click.echo(f"Asked {heard} to try parked chunks again.")
