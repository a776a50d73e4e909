"""`evictbench show`: everything about one row: key, outcome, lengths, eviction, engine, prompt and transcript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator import target
from orchestrator.errors import UserError
from orchestrator.store.reader import Reader
from orchestrator.tasks import registry
from orchestrator.tasks.base import Problem

_CHOICES = 10
_PIPED_WIDTH = 120
_NAME_WIDTH = 24

# Facts in reading order; what is in none of the groups comes last.
_GROUPS = {
    title: tuple(names.split())
    for title, names in {
        "Row": "row_id cell_label model task problem_id problem_index sample policy policy_params",
        "Outcome": "verdict extracted grade_method grader grader_version judge status finish_reason",
        "Lengths and times": "n_prompt n_output n_reasoning ttft_seconds e2e_seconds queue_seconds "
        "decode_tokens_per_second num_preemptions concurrency",
        "Eviction": "keep interval recent protection n_sink overflow_mode overflow events expected_events "
        "prompt_kept_mean prompt_kept_min cached_peak cached_mean union_alive kept_crc nan_scores age_histogram "
        "eviction_seed",
    }.items()
}


@click.command()
@click.argument("row")
@click.option("--from", "job_or_store", type=click.Path(path_type=Path), help="Job file or store; default ./store.")
@click.option("--text/--no-text", default=True, show_default=True, help="Show prompt and transcript.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(row: str, job_or_store: Path | None, text: bool, style: str) -> None:
    """Everything about one ROW: its id (cell/problem/sample) or the beginning of one.

    Row ids are in `evictbench rows --columns row_id`; an id that fits several rows lists them.
    """
    reader = target.resolve(job_or_store).reader
    row_id = find(reader, row)
    facts = reader.row(row_id)
    problem = find_problem(facts) if text else None
    if style == "json":
        more = {"text": reader.transcript(row_id)} if text else {}
        gold = {"gold": problem.gold, "messages": [dict(message) for message in problem.messages]} if problem else {}
        click.echo(json.dumps({**facts, **gold, **more}, indent=1, default=str))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=_PIPED_WIDTH)
    for title, names in grouped(facts).items():
        console.print(_table(title, {name: facts[name] for name in names}), Text())
    if text:
        _print_texts(console, problem, reader.transcript(row_id))


def find(reader: Reader, row: str) -> str:
    """The one row id that `row` is or begins. Raises UserError with the choices when it fits none or several."""
    found = reader.match(row, _CHOICES + 1)
    if len(found) == 1 or row in found:
        return row if row in found else found[0]
    if found:
        more = "\n  ..." if len(found) > _CHOICES else ""
        listed = "\n  ".join(found[:_CHOICES])
        raise UserError(f"'{row}' fits several rows; write more of the id:\n  {listed}{more}")
    some = reader.match("", 3)
    known = f"row ids look like {some[0]}" if some else "the store holds no rows yet"
    raise UserError(
        f"no row begins with '{row}' in the store {reader.paths.root}; {known}. List them with: evictbench rows "
        "--columns row_id. A row of another store: evictbench show ROW --from JOB or STORE."
    )


def find_problem(facts: dict[str, Any]) -> Problem | None:
    """The row's problem with its gold answer, where the task can be built from its name alone and is still the same."""
    try:
        problems = registry.get(facts["task"]).problems(int(facts["problem_index"]) + 1)
    except UserError:
        return None
    return next((problem for problem in problems if problem.problem_id == facts["problem_id"]), None)


def grouped(facts: dict[str, Any]) -> dict[str, list[str]]:
    """Names of all facts by group."""
    named = {name for names in _GROUPS.values() for name in names}
    groups = {title: [name for name in names if name in facts] for title, names in _GROUPS.items()}
    return {**groups, "Provenance": [name for name in facts if name not in named]}


def printable(text: str) -> str:
    """Text without control characters: a generation must not drive the reader's terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _table(title: str, facts: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True, min_width=_NAME_WIDTH)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        table.add_row(name, Text("-" if value in (None, "") else printable(shown)))
    return table


def _print_texts(console: Console, problem: Problem | None, transcript: str) -> None:
    for message in problem.messages if problem else ():
        console.rule(f"prompt ({message['role']})", align="left")
        console.print(Text(printable(message["content"])))
    if problem:
        console.print(Text(f"gold answer: {printable(problem.gold)}", style="bold"))
    console.rule("generated text", align="left")
    console.print(Text(printable(transcript)))
