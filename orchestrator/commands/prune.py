"""`evictbench prune`: take a campaign, or single cells, out of a store."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator import control
from orchestrator.errors import UserError, closest
from orchestrator.store import mirror, upkeep
from orchestrator.store.paths import StorePaths
from orchestrator.store.writer import check_version


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--campaign", help="A campaign with the cells that no other campaign plans.")
@click.option("--cell", "cells", multiple=True, help="A cell id or the beginning of one; may be repeated.")
@click.option("--yes", is_flag=True, help="Delete; without it, only what would go is listed.")
def command(store: Path, campaign: str | None, cells: tuple[str, ...], yes: bool) -> None:
    """List, and with --yes delete, rows and grades of STORE by campaign or by cell. There is no way back."""
    paths = StorePaths(store)
    check_version(paths)
    if (campaign is None) is (not cells):
        raise click.UsageError("name either --campaign or --cell.")
    doomed = _of_campaign(paths, campaign) if campaign is not None else _matching(paths, cells)
    sizes = upkeep.sizes(paths, doomed)
    for cell_id, (chunks, size) in sizes.items():
        click.echo(f"{cell_id}  {chunks} chunks, {size / 1e6:.1f} MB")
    if campaign is not None:
        shared = upkeep.cells_of(control.campaign(paths, campaign)) - set(doomed)
        click.echo(f"campaign {campaign}" + (f"; {len(shared)} cells stay for other campaigns" if shared else ""))
    if not yes:
        click.echo("Nothing was deleted. Add --yes to delete.")
        return
    try:
        upkeep.prune(paths, doomed, campaign)
    except OSError as error:
        raise UserError(f"pruning stopped: {error}. Run the same command again to go on.") from error
    click.echo(f"Deleted {len(doomed)} cells, {sum(size for _, size in sizes.values()) / 1e6:.1f} MB.")


def _of_campaign(paths: StorePaths, name: str) -> list[str]:
    campaign = control.campaign(paths, name)
    if control.running(campaign):
        raise UserError(f"campaign '{name}' is being driven; stop it first: evictbench cancel JOB")
    return sorted(upkeep.cells_of(campaign) - upkeep.used_elsewhere(paths, name))


def _matching(paths: StorePaths, prefixes: tuple[str, ...]) -> list[str]:
    mirror.pull(paths.root)
    known = sorted(path.name for path in paths.generations.iterdir()) if paths.generations.is_dir() else []
    found: list[str] = []
    for prefix in prefixes:
        fits = [cell for cell in known if cell.startswith(prefix)]
        if len(fits) != 1:
            what = "no cell" if not fits else f"{len(fits)} cells"
            raise UserError(f"'{prefix}' begins {what} of {paths.name}.{closest(prefix, known)}")
        found += fits
    return found
