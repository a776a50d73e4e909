"""`evictbench bench`: measure the speed of a job's arms under stated conditions.

Rows go into the store's throughput table; the dashboard's Throughput and Frontier pages show them.
"""

from __future__ import annotations

from pathlib import Path

import click
import pandas as pd
from rich.console import Console
from rich.table import Table

from orchestrator import throughput
from orchestrator.errors import UserError
from orchestrator.grid import expand
from orchestrator.spec import JobSpec
from orchestrator.stats.throughput import ratios
from orchestrator.store.writer import Store


@click.group()
def command() -> None:
    """Measure speed, apart from accuracy."""


@command.command("throughput")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--store", help="Use this store instead of execution.store.", type=click.Path(path_type=Path))
@click.option("--prompt", default=128, show_default=True, type=click.IntRange(1), help="Tokens of every prompt.")
@click.option("--output", default=1024, show_default=True, type=click.IntRange(1), help="Generated tokens of each.")
@click.option("--requests", default=64, show_default=True, type=click.IntRange(1), help="Requests at once.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds that count.")
@click.option("--warm-up", default=1, show_default=True, type=click.IntRange(0), help="Rounds before them.")
@click.option("--reference", default="full", show_default=True, help="Policy that speeds are divided by.")
def measure(  # noqa: PLR0913  one parameter per option
    job: Path, store: Path | None, prompt: int, output: int, requests: int, rounds: int, warm_up: int, reference: str
) -> None:
    """Run every arm of JOB once a round: random prompts, a fixed length, end-of-text ignored, an engine of its own.

    Ratios are formed inside a round. Rounds with a preemption or a prefix-cache hit are kept and not counted.
    """
    spec = JobSpec.load(job)
    plan = expand(spec)
    setup = throughput.Setup(prompt, output, requests, rounds, warm_up, throughput.vocabulary(plan))
    groups = throughput.arms(plan, setup)
    paths = Store.open(store or spec.execution.store).paths
    console = Console()
    count = sum(map(len, groups.values()))
    console.print(
        f"{count} arms, {rounds} rounds after {warm_up} of warm-up, {requests} requests of {prompt}+{output}."
    )
    rows = []
    for _, row in throughput.measure(groups, setup, lambda text: console.print(text, highlight=False)):
        try:
            throughput.commit(paths, row)
        except OSError as error:
            raise UserError(f"the measurement cannot be written to {paths.root}: {error}") from error
        rows.append(row)
    for model, part in pd.DataFrame(rows).groupby("model", sort=False):
        console.print(page(str(model), part, reference))


def page(model: str, rows: pd.DataFrame, reference: str) -> Table:
    """Tokens per second and ratio of every arm of one model."""
    rows = rows.assign(arm=rows["cell_label"].str.split().str[2:].str.join(" "))
    mine = rows[rows["policy"] == reference]["arm"]
    base = str(mine.iloc[0] if len(mine) else rows["arm"].iloc[0])
    table = Table("arm", "tokens/s", "range", f"/ {base}", "95 %", "rounds", "excluded", title=model, box=None)
    for _, row in ratios(rows, base).iterrows():
        known = pd.notna(row["low"])
        table.add_row(
            str(row["arm"]),
            f"{row['tokens_per_second']:,.0f}",
            f"{row['tokens_per_second_low']:,.0f}-{row['tokens_per_second_high']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['low']:.2f}-{row['high']:.2f}" if known else str(row["reason"]) or "-",
            str(row["rounds"]),
            str(row["excluded"]),
        )
    return table
