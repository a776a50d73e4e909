"""`evictbench compact`: make a large store open fast; rows, ledger and running jobs are not touched."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.errors import UserError
from orchestrator.store.reader import Reader


@click.command("compact")
@click.argument("store", type=click.Path(path_type=Path), default=Path("store"))
def command(store: Path) -> None:
    """Write a copy of what dashboard and reports need of STORE (default ./store) below compact/; they read it first.

    The copy holds no texts and may be deleted at any time. Workers may append meanwhile: what the copy lacks is read
    from the chunks. Run it again after a job.
    """
    reader = Reader(store)
    try:
        made = reader.compact()
    except OSError as error:
        raise UserError(
            f"cannot write below {store / 'compact'}: {error.strerror or error}. Free some space or mend the "
            "permissions; nothing else was touched."
        ) from error
    click.echo(f"{reader.paths.name}: {made} folders compacted, the others were up to date or are being written.")
