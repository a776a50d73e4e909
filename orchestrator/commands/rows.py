"""`evictbench rows`: the rows themselves, with their grades, as CSV, JSON lines or Parquet."""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd

from orchestrator import target
from orchestrator.analysis import Selection
from orchestrator.errors import UserError
from orchestrator.store.reader import COLUMNS, SCALARS, Reader


@click.command()
@click.argument("job_or_store", required=False, type=click.Path(path_type=Path))
@click.option("--format", "style", type=click.Choice(["csv", "jsonl", "parquet"]), default="csv", show_default=True)
@click.option("--columns", help="Comma-separated names; default: all but text, age_histogram and versions.")
@click.option("--text", is_flag=True, help="Add the generated text.")
@click.option("--only", multiple=True, metavar="KIND=NAME", help="Only one model=, task= or policy=; may be repeated.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file.")
@click.option("--list-columns", is_flag=True, help="Print the names of all columns and stop.")
def command(
    job_or_store: Path | None,
    style: str,
    columns: str | None,
    text: bool,
    only: tuple[str, ...],
    output: Path | None,
    list_columns: bool,
) -> None:
    """Rows of JOB_OR_STORE (a job file or a store, default ./store), one line per generation.

    Parquet needs --output. Rows of every kind are written, simulated and invalid ones too: see engine_kind and status.
    """
    if list_columns:
        click.echo("\n".join(COLUMNS))
        return
    if style == "parquet" and output is None:
        raise UserError("--format parquet needs a file: add --output rows.parquet.")
    opened = target.resolve(job_or_store)
    names = [name.strip() for name in columns.split(",")] if columns else list(SCALARS)
    names += ["text"] if text and "text" not in names else []
    frame = opened.reader.rows(names, _cells(opened.reader, target.selection(opened.campaign, only)))
    if not len(frame):
        click.echo(f"{opened.store} holds no such rows yet.", err=True)
    try:
        _write(frame, style, output)
    except OSError as error:
        if output is None:
            raise
        raise UserError(f"{output} cannot be written: {error.strerror or error}.") from error


def _cells(reader: Reader, selection: Selection) -> list[str]:
    cells = reader.cells()
    if selection.campaign is not None:
        cells = cells[cells["cell_id"].isin(reader.plan(selection.campaign)["cell_id"])]
    return [str(cell_id) for cell_id in selection.apply(cells)["cell_id"]]


def _write(frame: pd.DataFrame, style: str, output: Path | None) -> None:
    if style == "parquet":
        frame.to_parquet(output, index=False)
        return
    text = (
        frame.to_csv(index=False) if style == "csv" else frame.to_json(orient="records", lines=True, date_format="iso")
    )
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
