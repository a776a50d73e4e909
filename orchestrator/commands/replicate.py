"""`evictbench replicate`: a publication's numbers beside those of a store."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
from rich.console import Console, Group, RenderableType
from rich.text import Text

from orchestrator import target
from orchestrator.errors import UserError
from orchestrator.replication import page
from orchestrator.replication.probes import ProbeRun
from orchestrator.replication.published import PAPERS, named
from orchestrator.report_formats import Fitted
from orchestrator.store.reader import Reader
from orchestrator.store.writer import Store

PIPED_WIDTH = 120


@click.command()
@click.argument("store", required=False, type=click.Path(path_type=Path))
@click.option("--paper", default="random-attention", show_default=True, help=f"One of: {', '.join(PAPERS)}.")
@click.option(
    "--probes", multiple=True, type=click.Path(path_type=Path), help="Folder of evictbench probe; may be repeated."
)
@click.option("--format", "style", type=click.Choice(["text", "md", "html", "csv"]), default="text", show_default=True)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of printing.")
def command(store: Path | None, paper: str, probes: tuple[Path, ...], style: str, out: Path | None) -> None:
    """Every published number with the estimate of STORE (default ./store; or a job file that has been run).

    consistent, deviates, differs by design, or not run; text prints the summary, md, html and csv every number. A
    store that is empty or not there shows what would have to run, with GPU-hours.
    """
    named(paper)
    probed = [ProbeRun.read(folder) for folder in probes]
    with tempfile.TemporaryDirectory() as scratch:
        found = page.build(
            _reader(store or target.DEFAULT_STORE, Path(scratch)), paper, str(store or "./store"), probed
        )
    if style == "text" and out is None:
        console = Console()
        Console(width=console.width if console.is_terminal else PIPED_WIDTH).print(_text(found))
        return
    text = {"md": page.as_markdown, "html": page.as_html, "csv": _csv, "text": page.as_markdown}[style](found)
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror or error}. Name a file in a directory that exists.") from error
    click.echo(f"wrote {out}")


def _reader(store: Path, scratch: Path) -> Reader:
    """The store, or an empty one in its place where nothing has run yet."""
    job = store.suffix in (".yaml", ".yml")
    unused = not job and (not store.exists() or (store.is_dir() and not any(store.iterdir())))
    return Reader(Store.open(scratch / "store").paths.root) if unused else target.resolve(store).reader


def _text(found: page.Page) -> Group:
    parts: list[RenderableType] = [Text(found.title, style="bold"), *(Text(line) for line in found.lines)]
    for sheet in page.summary(found):
        parts += [Text(), Fitted(sheet)]
    return Group(*parts)


def _csv(found: page.Page) -> str:
    return found.table.to_csv(index=False)
