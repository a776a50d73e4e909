"""`evictbench merge`: copy the rows, grades and campaigns of other stores into one."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.errors import UserError
from orchestrator.store.paths import StorePaths
from orchestrator.store.upkeep import merge
from orchestrator.store.writer import Store, check_version


@click.command()
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--into", "target", required=True, help="Store that receives them; made if missing.", type=click.Path())
def command(sources: tuple[Path, ...], target: str) -> None:
    """Copy what SOURCES hold and the store --into lacks. Nothing of either is changed or overwritten.

    A chunk of a cell that both hold stays as it is in the target. Interrupted, the same command goes on.
    """
    opened = [StorePaths(source) for source in sources]
    for paths in opened:
        check_version(paths, writing=True)
        if paths.place == StorePaths(Path(target)).place:
            raise UserError(f"{paths.name} cannot be merged into itself.")
    into = Store.open(target).paths
    for paths in opened:
        try:
            done = merge(paths, into)
        except OSError as error:
            raise UserError(
                f"merging {paths.name} into {target} failed: {error}. Run the same command again."
            ) from error
        click.echo(
            f"{paths.name}: {done.chunks} chunks, {done.grades} grade files, {done.campaigns} campaigns copied; "
            f"{done.kept} chunks were there already."
        )
        if done.foreign:
            click.echo(f"{done.foreign} grade files belong to other rows of chunks that {target} holds; left behind.")
