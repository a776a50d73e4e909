"""`evictbench cancel`: stop a running job; started rows finish, at most 30 s."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import control
from orchestrator.store.campaign import Control


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
def command(job: Path, store: Path | None) -> None:
    """Stop the drivers of JOB: what has started finishes (at most 30 s), the rest waits for `evictbench run`."""
    heard = control.ask(control.find(job, store), Control.CANCEL)
    click.echo(f"Asked {heard} to stop. Committed rows stay; `evictbench run {job}` goes on later.")
