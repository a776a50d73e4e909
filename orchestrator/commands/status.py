"""`evictbench status`: how far a campaign is, read from the store alone.

Shows cells done and planned, engines with the age of their last heartbeat, and parked chunks with their reasons.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from orchestrator import control
from orchestrator.chunks import ChunkId, blocks_for
from orchestrator.store.campaign import Campaign
from orchestrator.store.paths import chunk_files


@dataclass(frozen=True, slots=True)
class CellStatus:
    """Chunks of one planned cell."""

    label: str
    cell_id: str
    done: int
    planned: int


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Last heartbeat of an engine that nobody has seen end; age in seconds."""

    engine_id: str
    state: str
    running: int
    waiting: int
    generated_tokens: int
    age: float | None


@dataclass(frozen=True, slots=True)
class ParkedStatus:
    """Chunks of a cell that were given up for the same reason, at their last attempt."""

    label: str
    chunks: int
    reason: str


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """Last heartbeat of a driver that has not signed off; age in seconds."""

    driver: str
    host: str
    pid: int
    state: str
    age: float | None


@dataclass(frozen=True, slots=True)
class SamplesStatus:
    """Samples of an adaptive job: fewest and most asked for so far, the job's max, and the share of rows not asked for.

    until_width  in points
    """

    fewest: int
    most: int
    limit: int
    until_width: float
    spared: float


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """What the store knows of one campaign."""

    name: str
    cells: tuple[CellStatus, ...]
    engines: tuple[EngineStatus, ...]
    parked: tuple[ParkedStatus, ...]
    attempts_failed: int
    drivers: tuple[DriverStatus, ...] = ()
    samples: SamplesStatus | None = None


@click.command()
@click.argument("job", required=False, type=click.Path(path_type=Path))
@click.option("--store", type=click.Path(path_type=Path), help="Store to read; the job's, or ./store.")
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(job: Path | None, store: Path | None, style: str) -> None:
    """How far JOB is; without JOB, every campaign of the store."""
    campaigns = [control.find(job, store)] if job is not None else control.campaigns(store or Path("./store"))
    found = [read(campaign) for campaign in campaigns]
    if style == "json":
        click.echo(json.dumps([asdict(status) for status in found], indent=2))
    else:
        for status in found:
            show(status, Console())


def read(campaign: Campaign) -> CampaignStatus:
    """Everything about a campaign, from its files and the list of committed chunks."""
    plan = campaign.plan().to_pylist()
    committed = {chunk for chunk, _ in chunk_files(campaign.paths.generations, (row["cell_id"] for row in plan))}
    labels = {row["cell_id"]: row["cell_label"] for row in plan}
    sizes = {row["cell_id"]: (row["samples_max"], blocks_for(row["n_problems"])) for row in plan}
    # A job that shrank leaves committed chunks behind that are not asked for any more.
    done = Counter(c.cell_id for c in committed if c.sample < sizes[c.cell_id][0] and c.block < sizes[c.cell_id][1])
    cells = [
        CellStatus(label, cell_id, done[cell_id], sizes[cell_id][0] * sizes[cell_id][1])
        for cell_id, label in labels.items()
    ]
    attempts = campaign.attempts()
    return CampaignStatus(
        name=campaign.campaign_id,
        cells=tuple(cells),
        engines=tuple(_engine(facts) for facts in campaign.live()),
        parked=_parked(attempts, committed, labels),
        attempts_failed=len(attempts),
        drivers=tuple(_driver(facts) for facts in campaign.drivers()),
        samples=_samples(campaign.resolved().get("samples") or {}, plan),
    )


def _samples(declared: Mapping[str, Any], plan: Sequence[Mapping[str, Any]]) -> SamplesStatus | None:
    if declared.get("until_width") is None or not plan:
        return None
    asked = [row["samples_max"] for row in plan]
    limit = int(declared["max"])
    rows = sum(row["n_problems"] * row["samples_max"] for row in plan)
    spared = 1 - rows / (limit * sum(row["n_problems"] for row in plan))
    return SamplesStatus(min(asked), max(asked), limit, float(declared["until_width"]), spared)


def _parked(
    attempts: list[dict[str, Any]], committed: set[ChunkId], labels: dict[str, str]
) -> tuple[ParkedStatus, ...]:
    last = {ChunkId(a["cell_id"], a["sample"], a["block"]): a for a in sorted(attempts, key=lambda a: a["attempt"])}
    reasons = Counter(
        (labels[chunk.cell_id], record.get("reason", ""))
        for chunk, record in last.items()
        if record.get("parked") and chunk not in committed and chunk.cell_id in labels
    )
    return tuple(ParkedStatus(label, count, reason) for (label, reason), count in reasons.items())


def _engine(facts: dict[str, Any]) -> EngineStatus:
    return EngineStatus(
        engine_id=str(facts.get("engine_id")),
        state=str(facts.get("detail", "unknown")),
        running=int(facts.get("running", 0)),
        waiting=int(facts.get("waiting", 0)),
        generated_tokens=int(facts.get("generated_tokens", 0)),
        age=control.age(facts),
    )


def _driver(facts: dict[str, Any]) -> DriverStatus:
    host, state = str(facts.get("host", "unknown")), str(facts.get("state", "unknown"))
    return DriverStatus(str(facts.get("driver")), host, int(facts.get("pid", 0)), state, control.age(facts))


def _beat(age: float | None) -> str:
    lost = age is None or age > control.SILENT_SECONDS
    return ("unknown" if age is None else f"{age:.0f} s ago") + ", probably dead" * lost


def _spared(samples: SamplesStatus) -> str:
    so_far = f"{samples.fewest}" if samples.fewest == samples.most else f"{samples.fewest} to {samples.most}"
    return (
        f"samples so far: {so_far} of at most {samples.limit} (until every interval is within {samples.until_width:g} "
        f"points); {100 * samples.spared:.0f} % of the rows not asked for"
    )


def show(status: CampaignStatus, console: Console) -> None:
    """Print one campaign."""
    done, planned = sum(cell.done for cell in status.cells), sum(cell.planned for cell in status.cells)
    console.print(f"[bold]{status.name}[/]: {done}/{planned} chunks committed", highlight=False)
    cells = Table("cell", "done", "planned", box=None)
    for cell in status.cells:
        cells.add_row(cell.label, str(cell.done), str(cell.planned))
    console.print(cells)
    if status.samples is not None:
        console.print(_spared(status.samples), highlight=False)
    for driver in status.drivers:
        text = f"driver {driver.driver} on {driver.host} (pid {driver.pid}): {driver.state}, {_beat(driver.age)}"
        console.print(text, markup=False, highlight=False)
    if status.engines:
        engines = Table("engine", "state", "running", "waiting", "tokens", "heartbeat", box=None)
        for engine in status.engines:
            counts = (str(engine.running), str(engine.waiting), f"{engine.generated_tokens:,}")
            engines.add_row(engine.engine_id, engine.state, *counts, _beat(engine.age))
        console.print(engines)
    else:
        console.print("no engine is running")
    for parked in status.parked:
        text = f"parked: {parked.label}: {parked.chunks} chunk{'s' * (parked.chunks != 1)}: {parked.reason}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
