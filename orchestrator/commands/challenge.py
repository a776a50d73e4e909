"""`evictbench challenge`: does a policy of yours beat protected random, and is it its choice of tokens that does it?"""

from __future__ import annotations

from pathlib import Path

import click
import yaml
from rich.console import Console
from rich.text import Text

from orchestrator import cluster
from orchestrator.backend import Backend
from orchestrator.backend_local import LocalBackend
from orchestrator.challenge import design, page, session
from orchestrator.errors import UserError
from orchestrator.report_formats import Fitted
from orchestrator.target import DEFAULT_STORE

PIPED_WIDTH = 120


@click.command()
@click.argument("policy")
@click.option("--model", default=design.REASONER, show_default=True, help="As in a job file.")
@click.option("--task", help="A task's name; the reasoner's own by default.")
@click.option("--keep", type=click.IntRange(min=1), help="Cached tokens per head; the task's published one by default.")
@click.option("--interval", type=click.IntRange(min=1), help="Tokens between events.  [64; 16 on the reasoner]")
@click.option("--problems", default=design.PROBLEMS, show_default=True, type=click.IntRange(min=8), help="Test split.")
@click.option("--tuning", default=design.TUNING, show_default=True, type=click.IntRange(min=8), help="Tuning split.")
@click.option("--samples", type=click.IntRange(min=1), help="Answers to each problem; 1 where sampling is greedy.")
@click.option("--param", "params", multiple=True, metavar="NAME=VALUE", help="The policy's own; may be repeated.")
@click.option("--task-option", "options", multiple=True, metavar="NAME=VALUE", help="The task's own, as data_file.")
@click.option("--store", default=DEFAULT_STORE, show_default=True, type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(["ray", "local"]), default="ray", show_default=True)
@click.option("--address", help="Ray cluster to run on; without it, a local one that lives as long as the command.")
@click.option("--probes/--no-probes", default=None, help="Ask for a passcode said once.  [the reasoner only]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the page as Markdown, too.")
@click.pass_context
def command(  # noqa: PLR0913  one parameter per option
    ctx: click.Context,
    policy: str,
    model: str,
    task: str | None,
    keep: int | None,
    interval: int | None,
    problems: int,
    tuning: int,
    samples: int | None,
    params: tuple[str, ...],
    options: tuple[str, ...],
    store: Path,
    backend: str,
    address: str | None,
    probes: bool | None,
    out: Path | None,
) -> None:
    """Put POLICY (my_policy.py:MyPolicy, or a policy's name) to the test against protected random at the same keep.

    The first problems of the task are the tuning split: tune on them as you like. The verdict comes from the problems
    after them. Beside random stand two nulls: random with the challenger's own age curve and head overlap, and its
    scores permuted among tokens of one age. Rows go to the store and are never made twice, so more problems or samples
    only add to them.
    """
    if address is not None and backend == "local":
        raise click.UsageError("--address names a Ray cluster, so it does not go with --backend local.")
    challenger = design.Challenger(design.absolute(policy), dict(_pair("--param", text) for text in params))
    challenger.build()
    own = dict(_pair("--task-option", text) for text in options)
    where = design.setting(model, task, keep, interval, (tuning, problems), samples, own)

    def connect() -> Backend:
        return LocalBackend() if backend == "local" else cluster.connect(address)

    console = Console()
    try:
        wanted = model == design.REASONER if probes is None else probes
        found = session.fight(challenger, where, store, connect, console, wanted)
    except session.Stopped as stopped:
        ctx.exit(stopped.code)
    wide = console if console.is_terminal else Console(width=PIPED_WIDTH)
    wide.print(Text(f"\nChallenge: {challenger.title}", style="bold"))
    for line in page.lines(found):
        wide.print(Text(f"• {line}"))
    for sheet in page.sheets(found):
        wide.print(Text(), Fitted(sheet))
    if out is not None:
        _write(out, page.as_markdown(found))


def _pair(option: str, text: str) -> tuple[str, object]:
    """`NAME=VALUE` with the value as YAML reads it."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"{option} {text}: write NAME=VALUE.")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"{option} {text}: {value!r} is no YAML value.") from error


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror or error}. Name a file in a directory that exists.") from error
