"""`evictbench migrate`: bring a store that an older release wrote up to date."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from orchestrator.errors import UserError
from orchestrator.migration import migrate
from orchestrator.store.paths import StorePaths
from orchestrator.store.schema import SCHEMA_VERSION


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
def command(store: Path) -> None:
    """Bring STORE to the schema version of this release, so that rows can be added to it. Rows stay as they are.

    Reading needs no migration. Interrupted, the same command goes on. Older releases do not read the result.
    """
    paths = StorePaths(store)
    try:
        with Console(stderr=True).status("reading") as status:
            done = migrate(paths, lambda files: status.update(f"{files:,} files"))
    except OSError as error:
        raise UserError(
            f"the migration of {paths.name} stopped: {error}. Every row is still there; run the same command again."
        ) from error
    if done.version == SCHEMA_VERSION and not done.rewritten:
        click.echo(f"{paths.name} is of version {SCHEMA_VERSION} already: {done.kept} files.")
        return
    click.echo(f"{paths.name}: version {done.version} to {SCHEMA_VERSION}, {done.rewritten} files rewritten.")
