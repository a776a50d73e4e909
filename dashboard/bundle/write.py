"""What a bundle says: the facts that its numbers rest on, then every page of results."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from dashboard import data, frames, session
from dashboard.bundle import page
from dashboard.contents import (
    accuracy,
    compression,
    differences,
    frontier,
    lengths,
    overview,
    protection,
    replication,
    retention,
    throughput,
)
from dashboard.contents.base import Content


def html(store: Path, reference: str | None, rule: frames.Rule) -> str:
    """One self-contained page. Raises UserError for a store without rows and for a reference that it does not hold."""
    state = session.whole(store, reference, rule)
    return page.render(f"evictbench: {store.resolve().name}", list(facts(state)), list(contents(state)))


def facts(state: session.Session) -> Iterator[str]:
    """What the numbers rest on."""
    rows, planned = int(state.arms["rows"].sum()), int(state.arms["planned"].sum())
    yield f"{rows:,} rows of {planned:,} planned, exported {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    made = data.provenance(state.store, state.stamp)
    for _, one in made.groupby(["engine_kind", "gpu", "git_revision"])["rows"].sum().reset_index().iterrows():
        yield f"{one['rows']:,} rows by {one['engine_kind']} on {one['gpu']}, evictbench {one['git_revision'] or '?'}."
    yield from data.notes(state.store, state.stamp)
    yield from data.corrupt(state.store, state.stamp)


def contents(state: session.Session) -> Iterator[Content]:
    """Every page of results; Retention once for each model and task."""
    for build in (overview, accuracy, differences, compression, protection, throughput, frontier, lengths):
        yield build.build(state)
    yield replication.settled(state)
    for panel in frames.panels(state.arms):
        found = retention.build(state, panel)
        yield Content(f"Retention {panel.title}", found.question, found.blocks)
