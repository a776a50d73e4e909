"""Overview: what is settled, and how far is the campaign?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, frames, parts, session, tables, theme
from dashboard.contents import overview, throughput

CONTROL = {"run": "", "pause": " · asked to pause", "cancel": " · asked to stop"}


def main(state: session.Session) -> None:
    """Counters, the grid of verdicts, campaigns, then what a reader must know about the models."""
    st.title("Overview")
    st.caption(overview.question(state))
    table = state.differences
    contest = table[table["policy"] != "full"]
    counted = overview.counters(contest)
    fastest = throughput.fastest(state)
    columns = st.columns(len(counted) + (fastest is not None))
    for column, (label, number) in zip(columns, counted, strict=False):
        column.metric(label, number, border=True)
    if fastest is not None:
        columns[-1].metric("fastest arm measured", fastest.ratio, border=True, help=fastest.explanation)
    if contest.empty:
        st.info(frames.no_comparison(state.arms, state.reference), icon=":material/info:")
    else:
        parts.page(overview.verdicts, state, with_head=False)
    for note in data.notes(state.store, state.stamp):
        st.info(note, icon=":material/info:")
    st.subheader("Campaigns")
    campaigns(state)
    st.subheader("What was run")
    st.html(tables.render("Model · task", [("", name) for name in ("keep", "interval", "problems", "samples", "arms")],
                          what_was_run(state.all_budgets)))  # fmt: skip


def campaigns(state: session.Session) -> None:
    """Progress and freshness of every campaign in the store."""
    found = data.campaigns(state.store, state.stamp)
    if found.empty:
        st.caption("No campaign is on record in this store.")
    for _, campaign in found.iterrows():
        done = theme.count(campaign["rows"])
        planned = theme.count(campaign["planned"])
        st.progress(
            campaign["share"], text=f"**{campaign['name']}** {done} of {planned} rows {CONTROL[campaign['control']]}"
        )
    st.caption(f"Newest row: {data.freshness(state.store, state.stamp)}.")


def what_was_run(arms: pd.DataFrame) -> list[tables.Row]:
    """One line per model and task."""
    rows = []
    for panel in frames.panels(arms):
        mine = arms[arms["panel"] == panel.key]
        evicting = mine[mine["policy"] != "full"]
        cells = [
            tables.Cell(", ".join(f"{value:.0f}" for value in sorted(evicting[column].dropna().unique())))
            for column in ("keep", "interval")
        ]
        cells += [tables.Cell(theme.count(mine[name].max())) for name in ("planned_problems", "planned_samples")]
        cells.append(tables.Cell(str(len(mine))))
        rows.append(tables.Row(panel.title, cells))
    return rows


main(session.current())
