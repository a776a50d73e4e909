"""`evictbench pause`: hand out nothing more of a running job; engines end as they finish."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import control
from orchestrator.store.campaign import Control


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
def command(job: Path, store: Path | None) -> None:
    """Pause JOB: rows that have started finish and are committed, then engines end and free their GPUs.

    `evictbench resume JOB` goes on; `evictbench status JOB` shows the state.
    """
    heard = control.ask(control.find(job, store), Control.PAUSE)
    click.echo(f"Asked {heard} to pause: what has started finishes. Go on with: evictbench resume {job}")
