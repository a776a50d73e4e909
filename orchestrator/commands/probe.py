"""`evictbench probe`: what a model still recalls after eviction, with facts forced into heads or left to policies.

Runs in Transformers, beside the store: results go to files of their own.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from orchestrator.commands.report import PIPED_WIDTH
from orchestrator.errors import UserError
from orchestrator.probes.job import ProbeJob
from orchestrator.probes.scaling import scaled
from orchestrator.probes.session import Session
from orchestrator.probes.study import Record, Results, Row, arm_runs

_LEGEND = (
    "retrieved: every token of the value is the most probable one under the forced prefix. free: greedy decoding from "
    "the question gives the value. R: gain of log-probability over the deleted fact, as a share of that of the fact "
    "kept everywhere (ratio of sums). {2,5}: forced into KV heads 2 and 5 of every layer and deleted in the others. "
    "Intervals: 95 %, over instances."
)


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for results; default probes/NAME.")
@click.option("--instances", type=click.IntRange(min=2), help="Instances of every arm, instead of the job's.")
@click.option("--device", default="cpu", show_default=True, help="Where the model runs: cpu or cuda.")
@click.option("--scale", type=float, metavar="SHARE", help="In small on the embedded model, as in 0.01.")
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(job: Path, out: Path | None, instances: int | None, device: str, scale: float | None, style: str) -> None:
    """Run the probes of JOB and print what was recalled.

    Writes results.csv, survival.csv, records.csv and probes.json, anew after each probe.
    """
    spec = ProbeJob.load(job)
    if scale is not None:
        spec = scaled(spec, scale)
    if instances is not None:
        spec = spec.model_copy(update={"instances": instances})
    folder = out or Path("probes") / spec.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}. Name another folder with --out.") from error
    session = Session.open(spec, device)
    results = _run(session, folder)
    if style == "json":
        click.echo(json.dumps(as_json(session, results), indent=1))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=PIPED_WIDTH)
    for table in tables(results):
        console.print(table)
    console.print(Text(_LEGEND, style="dim"))
    for note in (*session.model.notes, *results.notes):
        console.print(Text(f"Note: {note}", style="yellow"))
    console.print(f"Written to {folder}.", highlight=False)


def _run(session: Session, folder: Path) -> Results:
    job, batches = session.job, math.ceil(session.job.instances / session.job.batch)
    total = batches * sum(1 for _ in arm_runs(job, session.engine.heads))
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left about"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(job.name, total=total)

        def advance(label: str) -> None:
            progress.update(task, advance=label != "filler", description=f"{job.name}: {label}")

        return session.study(advance, lambda results: write(folder, results, as_json(session, results)))


def tables(results: Results) -> Iterable[Table]:
    """One table a probe, then survival against theory."""
    for kind, rows in groupby(results.rows, key=lambda row: row.probe):
        yield _table(kind, list(rows))
    for kind, curve in results.survival.items():
        table = _grid(f"{kind}: survival of a fact's tokens under free random eviction")
        for name in ("events", "in a head", "theory", "in any head", "theory"):
            table.add_column(name, justify="right")
        for point in curve:
            shares = (point.per_head, point.per_head_theory, point.union, point.union_theory)
            table.add_row(str(point.events), *(f"{share:.3f}" for share in shares))
        yield table


def _table(kind: str, rows: Sequence[Row]) -> Table:
    two = any(row.fact != "all" for row in rows)
    table = _grid(f"{kind}: {rows[0].recall.n} instances")
    table.add_column("arm", no_wrap=True)
    for name in (["fact"] if two else []) + ["events", "retrieved", "", "free", "log p", "", "R", ""]:
        table.add_column(name, justify="right")
    for row in rows:
        found = row.recall
        table.add_row(
            " ".join(filter(None, (row.variant, row.arm))),
            *([row.fact] if two else []),
            str(row.events),
            f"{found.retrieval:.3f}",
            _between(found.retrieval_interval, 2),
            f"{found.free:.3f}",
            f"{found.log_prob:.2f}",
            _between(found.log_prob_interval, 2),
            "-" if math.isnan(found.r) else f"{found.r:.3f}",
            "" if math.isnan(found.r) else _between(found.r_interval, 2),
        )
    return table


def _grid(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)


def _between(interval: tuple[float, float], digits: int) -> str:
    return "" if math.isnan(interval[0]) else f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def as_json(session: Session, results: Results) -> dict[str, Any]:
    """Everything but the records, for programs; NaN becomes null."""
    return _plain({
        "job": session.job.model_dump(mode="json"),
        "model": {"path": session.job.model.path, "revision": session.model.revision, "notes": session.model.notes},
        "results": [_flat(row) for row in results.rows],
        "survival": {kind: [dataclasses.asdict(point) for point in curve] for kind, curve in results.survival.items()},
        "notes": results.notes,
    })  # fmt: skip


def write(folder: Path, results: Results, document: dict[str, Any]) -> None:
    """results.csv, survival.csv, records.csv, probes.json. Raises UserError where the folder cannot be written."""
    survival = [
        {"probe": kind, **dataclasses.asdict(point)} for kind, curve in results.survival.items() for point in curve
    ]
    try:
        (folder / "probes.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        _csv(folder / "results.csv", [_flat(row) for row in results.rows])
        _csv(folder / "survival.csv", survival)
        _csv(folder / "records.csv", [_joined(record) for record in results.records])
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}. Name another folder with --out.") from error


def _flat(row: Row) -> dict[str, Any]:
    flat: dict[str, Any] = {"probe": row.probe, "variant": row.variant, "arm": row.arm, "fact": row.fact}
    flat["events"] = row.events
    for name, value in dataclasses.asdict(row.recall).items():
        if isinstance(value, tuple):
            flat[name.replace("interval", "low")], flat[name.replace("interval", "high")] = value
        else:
            flat[name] = value
    return flat


def _joined(record: Record) -> dict[str, Any]:
    facts = dataclasses.asdict(record)
    return {name: " ".join(map(str, value)) if isinstance(value, tuple) else value for name, value in facts.items()}


def _csv(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        if rows:
            writer = csv.DictWriter(stream, rows[0])
            writer.writeheader()
            writer.writerows(rows)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
