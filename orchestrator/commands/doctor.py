"""`evictbench doctor`: whether this installation, machine, store and model are fit to run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from orchestrator import doctor
from orchestrator.doctor import Level
from orchestrator.target import DEFAULT_STORE

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
_NAME_WIDTH = 26


@click.command()
@click.option("--store", type=click.Path(path_type=Path), default=DEFAULT_STORE, help="Where rows go; default ./store.")
@click.option("--model", default="embedded:reasoner", show_default=True, help="Model to look at, as a job names it.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, store: Path, model: str, style: str) -> None:
    """Check imports, pins, plugin, tasks, model, store and machine. Exits 1 when a run would not work."""
    console = Console(soft_wrap=True)
    findings = []
    for finding in doctor.examine(store, model):
        findings.append(finding)
        if style == "text":
            step = f"\n{'':{_NAME_WIDTH + 6}}→ {finding.next_step}" if finding.next_step else ""
            mark = (f"{finding.level.value:<6}", _STYLES[finding.level])
            console.print(Text.assemble(mark, f"{finding.name:<{_NAME_WIDTH}}{finding.detail}{step}"))
    bad = sum(finding.level is Level.FAIL for finding in findings)
    warned = sum(finding.level is Level.WARN for finding in findings)
    if style == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        console.print(f"{len(findings) - bad - warned} ok, {_counted(warned, 'warning')}, {_counted(bad, 'failure')}")
    ctx.exit(1 if bad else 0)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
