"""`evictbench compact`: make a large store open fast; rows, ledger and running jobs are not touched."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.errors import UserError
from orchestrator.store.reader import Reader


@click.command("compact")
@click.argument("store", type=click.Path(path_type=Path), default=Path("store"))
def command(store: Path) -> None:
    """Write one copy per cell of STORE (default ./store) below compact/, which the dashboard and reports read first.

    The copies hold no texts and may be deleted at any time. Workers may append meanwhile: what a copy lacks is read
    from the chunks. Run it again after a job; only cells that changed are copied.
    """
    reader = Reader(store)
    try:
        made = reader.compact()
    except OSError as error:
        raise UserError(
            f"cannot write below {store / 'compact'}: {error.strerror or error}. Free some space or mend the "
            "permissions; nothing else was touched."
        ) from error
    click.echo(f"{store}: {made} folders compacted, the others were up to date or are being written.")
