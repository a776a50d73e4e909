"""Overview: what is settled, and how far is the campaign?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, frames, parts, session, tables, theme

COUNTERS = ("worse", "unresolved", "better")
CONTROL = {"run": "", "pause": " · asked to pause", "cancel": " · asked to stop"}


def counters(contest: pd.DataFrame) -> None:
    """How many arms are worse, unresolved or better than the reference; unfinished ones are counted apart."""
    counts = frames.verdict_counts(contest)
    columns = st.columns(len(COUNTERS) + 1)
    for column, name in zip(columns, COUNTERS, strict=False):
        mark = theme.VERDICTS[name]
        column.metric(f"{mark.glyph} {mark.text}", counts[name], border=True)
    columns[-1].metric(f"{theme.INCOMPLETE} unfinished", counts["unfinished"], border=True)


def difference_cell(row: pd.Series) -> tables.Cell:
    """`▼ −96.2`, hatched while unfinished."""
    if not row["complete"]:
        return tables.Cell(f"{theme.INCOMPLETE} {row['done']}", "incomplete", "Unfinished: no verdict yet")
    text = f"{theme.verdict_mark(row['verdict'])} {theme.points(row['difference'])}"
    hover = f"95 % interval {theme.interval(row['low'], row['high'])}; wins / losses / ties {row['counts']}; {row['n']}"
    return tables.Cell(text, row["verdict"], f"{hover} {row['reason']}".strip(), "differences")


def main(state: session.Session) -> None:
    """Counters, the grid of verdicts, campaigns, then what a reader must know about the models."""
    st.title("Overview")
    st.caption(f"What is settled against {state.reference_text}? Difference of accuracy in points, paired by problem.")
    table = state.differences
    contest = table[table["policy"] != "full"]
    counters(contest)
    if contest.empty:
        st.info(frames.no_comparison(state.arms, state.reference), icon=":material/info:")
    else:
        verdict_grid(state, table)
    for note in data.notes(state.store, state.stamp):
        st.info(note, icon=":material/info:")
    st.subheader("Campaigns")
    campaigns(state)
    st.subheader("What was run")
    st.html(tables.render("Model · task", [("", name) for name in ("keep", "interval", "problems", "samples", "arms")],
                          what_was_run(state.arms)))  # fmt: skip


def verdict_grid(state: session.Session, table: pd.DataFrame) -> None:
    """Arms x (model, task): the verdict mark and the difference in each cell; references say that they are."""
    panels = frames.panels(state.arms)
    compared = {row["cell_id"]: difference_cell(row) for _, row in table.iterrows()}
    rows = []
    for label, mine in frames.by_arm(state.arms):
        first = mine.iloc[0]
        ids = dict(zip(mine["panel"], mine["cell_id"], strict=True))
        reference = tables.Cell("reference") if first["policy"] == state.reference else tables.MISSING
        cells = [compared.get(ids.get(panel.key, ""), reference) for panel in panels]
        kind = frames.row_kind(mine, state.references)
        rows.append(tables.Row(frames.short_label(label, first), cells, kind, first["rule"]))
    st.html(tables.render("Policy", [(panel.model, panel.task) for panel in panels], rows))
    parts.legend("Each cell: difference in points.")


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
