"""`evictbench regrade`: grade stored generations with the installed graders; no model, no GPU.

Exit status: 0 everything is graded, 1 some chunks could not be, 2 nothing can be graded as asked, 130 stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from orchestrator import cluster, regrading
from orchestrator.backend import Backend
from orchestrator.backend_local import LocalBackend
from orchestrator.campaign import EXIT_INCOMPLETE, EXIT_STOPPED, signals
from orchestrator.driver import Interrupt
from orchestrator.environment import usable_cores


@click.command()
@click.argument("job_or_store", required=False, type=click.Path(path_type=Path))
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Only rows of this task; may be repeated.")
@click.option("--grader-version", "version", type=int, help="Fail unless this is the installed grader's version.")
@click.option("--judge", help="Another judge: lcb-compat beside process, or published.")
@click.option("--data-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The task's problems.")
@click.option("--again", is_flag=True, help="Discard this version's grades first, as after mending an answer key.")
@click.option("--address", help="Ray cluster to grade on; without it, a local one that lives as long as the command.")
@click.option("--backend", type=click.Choice(["ray", "local"]), default="ray", show_default=True, help="local: no Ray.")
@click.pass_context
def command(ctx: click.Context, /, job_or_store: Path | None, address: str | None, backend: str, **wish: Any) -> None:
    """Grade the rows of JOB_OR_STORE (default ./store) that the installed graders have not graded.

    Older grades stay; reports count the newest. A killed or stopped run goes on where it ended. Ctrl-C finishes what
    is being graded, a second one stops at once.
    """
    if address is not None and backend == "local":
        raise click.UsageError("--address names a Ray cluster, so it does not go with --backend local.")
    console = Console()
    work = regrading.prepare(job_or_store, regrading.Wish(**wish))
    for batch in work.batches:
        name = f"{batch.task.name} by {batch.key.name}"
        _say(console, f"{name}: {batch.graded} chunks graded, {len(batch.missing)} to grade")
    if not work.missing:
        _say(console, "Everything is graded by these versions; nothing to do.")
        return
    interrupt = Interrupt()
    with signals(interrupt):
        grading: Backend = LocalBackend(graders=usable_cores()) if backend == "local" else cluster.connect(address)
        try:
            with signals(interrupt):  # Ray takes SIGTERM for itself when it starts
                errors = regrading.drive(work, grading, console, interrupt)
        finally:
            grading.close()
    ctx.exit(_conclude(console, work, errors, interrupt))


def _conclude(console: Console, work: regrading.Regrade, errors: tuple[str, ...], interrupt: Interrupt) -> int:
    for error in errors:
        _say(console, f"not graded: {error}")
    for batch in work.batches:
        found = list(regrading.changes(work.store, batch))
        total = sum(rows for *_, rows in found)
        detail = "".join(f"; {old} -> {new}: {rows:,}" for old, new, rows in found)
        _say(console, f"{batch.task.name}: {total:,} verdicts differ from the newest other grades{detail}")
    if interrupt.count:
        _say(console, "Stopped. The same command goes on from here.")
        return EXIT_STOPPED
    return EXIT_INCOMPLETE if errors else 0


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
