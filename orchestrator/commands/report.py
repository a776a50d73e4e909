"""`evictbench report`: accuracy per arm, paired differences with intervals and verdicts, eviction facts."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from orchestrator import report, report_formats, target

# Wide enough for every table; a terminal uses its own width.
PIPED_WIDTH = 120


@click.command()
@click.argument("job_or_store", required=False, type=click.Path(path_type=Path))
@click.option("--format", "style", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option("--reference", help="Policy to compare with; the job's, or random.")
@click.option("--same-rule", is_flag=True, help="Compare with the reference under each arm's own protection.")
@click.option("--equivalence", is_flag=True, help="Also test equivalence within the job's margin (or 2 points).")
@click.option("--scale", type=float, help="The job as `run --scale` ran it.", metavar="SHARE")
@click.option("--only", multiple=True, metavar="KIND=NAME", help="Show one model=, task= or policy=; may be repeated.")
def command(
    job_or_store: Path | None,
    style: str,
    reference: str | None,
    same_rule: bool,
    equivalence: bool,
    scale: float | None,
    only: tuple[str, ...],
) -> None:
    """What the rows of JOB_OR_STORE say: a job file or a store (default ./store), during a run or after it.

    The reference is the prompt-protected arm of that policy at the same model, task, keep and interval.
    """
    opened = target.resolve(job_or_store, scale)
    question = opened.question(reference, equivalence=equivalence, same_rule=same_rule)
    found = report.build(opened.reader, target.selection(opened.campaign, only), question)
    if style == "json":
        click.echo(json.dumps(report_formats.as_json(found), indent=1))
    elif style == "markdown":
        click.echo(report_formats.as_markdown(found), nl=False)
    else:
        console = Console()
        width = console.width if console.is_terminal else PIPED_WIDTH
        Console(width=width).print(report_formats.as_text(found))
