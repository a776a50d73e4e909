"""`evictbench plan`: what a job would run, how long that takes and what it could resolve.

Starts nothing and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator import adaptive, history
from orchestrator.cells import Cell, ModelRef, TaskRef
from orchestrator.grid import expand
from orchestrator.outline import OUTLINE_NOTE, OutlineResources
from orchestrator.planning import CellForecast, Forecast, forecast, refuse_small_budget
from orchestrator.scaling import scaled
from orchestrator.spec import JobSpec
from workers.api import EngineSpec

_LEGEND = (
    "done: chunks committed of those planned. rows: still to make. length: expected tokens of a row. "
    "detects: smallest difference to the reference, in points of accuracy, that a paired two-sided 95 % test finds "
    "with 80 % power; the reference (ref) is the prompt-protected arm of the same budget."
)


@click.command()
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--scale", type=float, help="Plan it in small on the embedded model, as in 0.01.", metavar="SHARE")
@click.option("--outline", is_flag=True, help="Size alone, where models and data are not on this machine.")
def command(job: Path, store: Path | None, style: str, scale: float | None, outline: bool) -> None:
    """What JOB would run: cells, rows, tokens, time, and the smallest difference each comparison could show.

    Reads the store for what is committed already. Nothing starts and nothing is written.
    """
    spec = JobSpec.load(job)
    if scale is not None:
        spec = scaled(spec, scale)
    where = store or Path(spec.execution.store)
    if outline:
        plan = expand(spec, OutlineResources())
        expected = forecast(replace(plan, notes=(*plan.notes, OUTLINE_NOTE)), history.History(), str(where))
    else:
        plan = adaptive.decided(expand(spec), where)
        expected = forecast(plan, history.read(where, plan), str(where))
        refuse_small_budget(plan, expected)
    if style == "json":
        click.echo(json.dumps(as_json(expected), indent=2))
    else:
        Console().print(page(expected))


def page(expected: Forecast) -> Group:
    """The terminal page of a forecast."""
    parts: list[RenderableType] = [Text(f"Job {expected.name}, store {expected.store}\n", style="bold")]
    parts += [_arms(list(cells), expected) for _, cells in groupby(expected.cells, key=_contest)]
    parts.append(Text(_LEGEND, style="dim"))
    if expected.rows:
        parts += [Text(), _engines(expected)]
    parts += [Text(f"Note: {note}", style="yellow") for note in expected.notes]
    parts.append(_summary(expected))
    return Group(*parts)


def as_json(expected: Forecast) -> dict[str, Any]:
    """The same figures for programs; times in seconds, sizes in bytes, differences in points of accuracy."""
    return {
        "job": expected.name,
        "store": expected.store,
        "cells": [
            {
                "cell_id": cell.planned.cell_id,
                "label": cell.planned.cell.label,
                "protocol": cell.planned.cell.protocol,
                "sampling": asdict(cell.planned.cell.sampling),
                "max_model_len": cell.planned.cell.model.max_model_len,
                "n_problems": cell.planned.n_problems,
                "samples": cell.planned.samples_max,
                "chunks": cell.chunks,
                "chunks_committed": cell.committed,
                "rows_to_make": cell.rows,
                "tokens_per_row": cell.tokens_per_row,
                "tokens_per_row_source": cell.source,
                "tokens": cell.tokens,
            }
            for cell in expected.cells
        ],
        "engines": [
            {
                "model": engine.model,
                "kind": engine.spec.kind,
                "keep_ceiling": engine.spec.keep_ceiling,
                "interval": engine.spec.interval,
                "needs": dict(engine.spec.needs),
                "cells": engine.cells,
                "tokens": engine.tokens,
                "tokens_per_second": engine.tokens_per_second,
                "tokens_per_second_source": engine.source,
                "seconds": engine.seconds,
            }
            for engine in expected.engines
        ],
        "comparisons": [
            {
                "cell_id": entry.cell_id,
                "reference_cell_id": entry.reference_id,
                "n_problems": entry.n_problems,
                "samples": entry.samples,
                "detectable_points": entry.points,
            }
            for entry in expected.comparisons
        ],
        "rows_to_make": expected.rows,
        "tokens": expected.tokens,
        "seconds": expected.seconds,
        "gpu_hours": expected.gpu_hours,
        "gpu_hours_range": list(expected.gpu_hours_range),
        "cost": expected.cost,
        "disk_bytes": expected.disk_bytes,
        "notes": list(expected.notes),
    }


def _table(title: str, *columns: str) -> Table:
    """Columns that start with `>` hold numbers; the first one never wraps."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding = (0, 1, 0, 0)
    for index, column in enumerate(columns):
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, no_wrap=index == 0)
    return table


def _contest(cell: CellForecast) -> tuple[ModelRef, TaskRef]:
    return cell.planned.cell.model, cell.planned.cell.task


def _arms(cells: Sequence[CellForecast], expected: Forecast) -> Table:
    first = cells[0].planned
    model, task = _contest(cells[0])
    samples = f"{first.samples_max} sample{'s' * (first.samples_max != 1)} each"
    title = f"{model.path}, {task.name}: {first.n_problems} problems, {samples}\n{drawn(first.cell)}"
    table = _table(title, "arm", ">done", ">rows", ">length", ">tokens", ">detects")
    points = {entry.reference_id: "ref" for entry in expected.comparisons}
    points |= {entry.cell_id: f"{entry.points:.1f}" for entry in expected.comparisons}
    for cell in cells:
        table.add_row(
            cell.planned.cell.arm_label,
            f"{cell.committed}/{cell.chunks}",
            f"{cell.rows:,}",
            f"{cell.tokens_per_row:,.0f}",
            amount(cell.tokens),
            points.get(cell.planned.cell_id, "-"),
        )
    return table


def drawn(cell: Cell) -> str:
    """`temperature 0.6, top_p 0.95, at most 32,768 tokens, protocol ours`; filters that are off are left out."""
    ref = cell.sampling
    filters = [("top_p", ref.top_p, 1.0), ("top_k", ref.top_k, 0), ("min_p", ref.min_p, 0.0)]
    parts = [f"temperature {ref.temperature:g}", *(f"{name} {value:g}" for name, value, off in filters if value != off)]
    return ", ".join([*parts, f"at most {ref.max_tokens:,} tokens", f"protocol {cell.protocol}"])


def _engines(expected: Forecast) -> Table:
    table = _table("Engines", "model", "eviction", ">cells", ">tokens", ">tokens/s", ">time")
    for engine in expected.engines:
        spec = engine.spec
        table.add_row(
            engine.model,
            eviction(spec),
            str(engine.cells),
            amount(engine.tokens),
            f"{engine.tokens_per_second:,.0f}",
            duration(engine.seconds),
        )
    return table


def eviction(spec: EngineSpec) -> str:
    """What an engine is built for: `keep ≤ 264, interval 16, records recent_queries 64`."""
    if not spec.keep_ceiling:
        return "off (full cache)"
    given = [name if value is True else f"{name} {value}" for name, value in spec.needs]
    records = f", records {', '.join(given)}" if given else ""
    return f"keep ≤ {spec.keep_ceiling}, interval {spec.interval}{records}"


def _summary(expected: Forecast) -> Text:
    if not expected.rows:
        return Text("Everything is in the store: a run would do nothing.", style="green")
    lengths = " and ".join(dict.fromkeys(cell.source for cell in expected.cells if cell.rows))
    speeds = " and ".join(dict.fromkeys(engine.source for engine in expected.engines if engine.tokens))
    least, most = expected.gpu_hours_range
    hours = f" ({expected.gpu_hours:,.1f} GPU-hours, {least:,.1f} to {most:,.1f})" if expected.gpu != "any" else ""
    share = 1 / expected.gpu_hours if expected.gpu_hours else 0.0
    cost = (
        f", {expected.cost:,.2f} at the job's rate ({expected.cost * least * share:,.2f} to "
        f"{expected.cost * most * share:,.2f})"
        if expected.cost is not None
        else ""
    )
    return Text(
        f"To make: {expected.rows:,} rows, about {amount(expected.tokens)} tokens, {duration(expected.seconds)} "
        f"with one engine at a time{hours}{cost}, {size(expected.disk_bytes)} on disk.\n"
        f"Lengths from {lengths}; speed from {speeds}."
    )


def amount(tokens: float) -> str:
    """`98.8k`, `3.0M`, `2.9G`."""
    return _scaled(tokens, 1000, ("", "k", "M", "G", "T"))


def size(count: float) -> str:
    """Bytes as `3.4 MB`."""
    return _scaled(count, 1000, (" B", " kB", " MB", " GB", " TB"))


def duration(seconds: float) -> str:
    """`0 s`, `45 s`, `12 min`, `3.4 h`, `2.1 d`."""
    for unit, length, digits in (("d", 86_400, 1), ("h", 3600, 1), ("min", 60, 0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.{digits}f} {unit}"
    return f"{seconds:.0f} s"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < base:
            return f"{value:.0f}{unit}" if unit in ("", " B") else f"{value:.1f}{unit}"
        value /= base
    return f"{value:.1f}{units[-1]}"
