"""`evictbench export STORE --html OUT`: a store as one HTML file for sharing, without texts."""

from __future__ import annotations

from pathlib import Path

import click

from dashboard import guard
from orchestrator.errors import UserError


@click.command("export")
@click.argument("store", type=click.Path(path_type=Path), default=Path("store"))
@click.option("--html", "out", type=click.Path(path_type=Path), required=True, help="File to write.")
@click.option("--reference", help="Policy to compare with; default is the job's.")
@click.option("--same-rule", is_flag=True, help="Compare under each arm's own protection rule.")
def command(store: Path, out: Path, reference: str | None, same_rule: bool) -> None:
    """Write tables and charts of STORE (default ./store) into one HTML file that needs no server and no network.

    It holds no prompts and no generations.
    """
    guard.check(store)
    if not out.absolute().parent.is_dir():
        raise UserError(f"cannot write {out}: there is no directory {out.absolute().parent}. Make it, or name another.")
    # Streamlit takes a second to import and complains about every cache where no page runs.
    from streamlit import logger  # noqa: PLC0415

    logger.set_log_level("ERROR")
    from dashboard import frames  # noqa: PLC0415
    from dashboard.bundle import write  # noqa: PLC0415

    text = write.html(store, reference, frames.Rule.SAME if same_rule else frames.Rule.AS_RUN)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}. Name another file with --html.") from error
    click.echo(f"{out}: {len(text.encode()):,} bytes, opens in any browser; texts are not in it.")
