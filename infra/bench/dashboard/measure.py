"""`python infra/bench/dashboard/measure.py STORE [--write docs/benchmarks.md]`: time every page on a large store.

Pages run in this process through Streamlit's own test harness, so the figures are those of the scripts: no network and
no drawing by a browser. CPU seconds are what counts on a shared machine; wall seconds stand beside them.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from streamlit.testing.v1 import AppTest

from dashboard import data
from dashboard.app import PAGES
from dashboard.command import APP
from dashboard.frames import Rule, Show

MARKS = ("<!-- bench-dashboard -->", "<!-- /bench-dashboard -->")
TIMEOUT = 600


@dataclass(frozen=True, slots=True)
class Lap:
    """CPU seconds of all threads, wall seconds, and the process's largest memory so far in MB."""

    what: str
    cpu: float
    wall: float
    memory: float


def lap(what: str, action: Callable[[], object]) -> Lap:
    """Time one action."""
    cpu, wall = time.process_time(), time.monotonic()
    action()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return Lap(what, time.process_time() - cpu, time.monotonic() - wall, peak)


def laps(store: Path) -> Iterator[Lap]:
    """Opening with the first page, then every page for the first time, then one interaction on the busiest pages."""
    sys.argv = ["app.py", str(store)]
    app = AppTest.from_file(str(APP), default_timeout=TIMEOUT)
    yield lap("open the store, once per server; then overview", lambda: check(app.run()))
    yield lap("look for new files", lambda: data.stamp(store))
    for page in [name for views in PAGES.values() for name in views if name != "overview"]:
        yield lap(page, partial(visit, app, page))
    yield from interactions(app)


def visit(app: AppTest, page: str) -> None:
    """Open a page."""
    check(app.switch_page(f"views/{page}.py").run())


def interactions(app: AppTest) -> Iterator[Lap]:
    """Choices that make a page compute something new."""

    def on(page: str) -> AppTest:
        return app.switch_page(f"views/{page}.py").run()

    on("accuracy")
    yield lap("accuracy: again, nothing new", lambda: check(app.run()))
    model = app.sidebar.multiselect(key="model")
    yield lap("accuracy: one model", lambda: check(model.select(model.options[0]).run()))
    on("differences")
    reference = app.sidebar.selectbox(key="reference")
    yield lap("differences: another reference", lambda: check(reference.select("recent").run()))
    rule = app.sidebar.radio(key="rule")
    yield lap("differences: same rule", lambda: check(rule.set_value(Rule.SAME).run()))
    on("problems")
    yield lap("problems: arms differ", lambda: check(app.button_group[0].set_value(Show.DIFFERING).run()))
    on("transcript")
    problem = app.selectbox(key="problem")
    yield lap("transcript: another problem", lambda: check(problem.select(problem.options[7]).run()))
    on("retention")
    panel = app.selectbox(key="panel")
    yield lap("retention: another task", lambda: check(panel.select(panel.options[-1]).run()))


def check(app: AppTest) -> None:
    """Raises RuntimeError for a page that failed: its time would mean nothing."""
    if app.exception:
        raise RuntimeError(f"{app.title[0].value if app.title else 'a page'} failed: {app.exception[0].value}")


def markdown(found: list[Lap], rows: int, cells: int) -> str:
    """The section of docs/benchmarks.md."""
    lines = [
        f"{rows:,} generations in {cells:,} cells, compacted; {os.cpu_count()} cores ({platform.machine()}), Python "
        f"{platform.python_version()}. CPU seconds of the page's script; wall seconds depend on what else ran.",
        "",
        "| what | CPU s | wall s | peak memory MB |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {one.what} | {one.cpu:.2f} | {one.wall:.2f} | {one.memory:,.0f} |" for one in found),
    ]
    return "\n".join(lines)


def replaced(text: str, section: str) -> str:
    """The page with its section between MARKS replaced, or added at the end."""
    whole = f"{MARKS[0]}\n## Dashboard on a million rows\n\n`make bench-dashboard`\n\n{section}\n{MARKS[1]}"
    pattern = re.compile(f"{re.escape(MARKS[0])}.*?{re.escape(MARKS[1])}", re.DOTALL)
    return pattern.sub(lambda _: whole, text) if MARKS[0] in text else f"{text.rstrip()}\n\n{whole}\n"


@click.command()
@click.argument("store", type=click.Path(path_type=Path, exists=True))
@click.option("--write", type=click.Path(path_type=Path), help="Markdown file whose section is replaced.")
def main(store: Path, write: Path | None) -> None:
    """Time every page of the dashboard on STORE."""
    found = []
    for one in laps(store):
        found.append(one)
        click.echo(f"{one.what:40} {one.cpu:6.2f} CPU s {one.wall:7.2f} s {one.memory:6,.0f} MB")
    counts = data.arms(store, data.stamp(store))["rows"]
    if write is not None:
        old = write.read_text(encoding="utf-8") if write.exists() else "# Benchmarks\n"
        write.write_text(replaced(old, markdown(found, int(counts.sum()), len(counts))), encoding="utf-8")


if __name__ == "__main__":
    main()
