"""Live: is it running?"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from dashboard import data, frames, session, status, tables


@st.fragment(run_every=status.EVERY_SECONDS)
def panel(state: session.Session) -> None:
    """Failures first, then engines by heartbeat, then the share done of every cell; reads small files only."""
    status.failures(state.store)
    status.engines(state.store)
    done = data.done_rows(state.store)
    planned = dict(zip(state.all_budgets["cell_id"], state.all_budgets["planned"], strict=True))
    status.pace(state.store, sum(max(0, int(rows) - done.get(cell, 0)) for cell, rows in planned.items()))
    st.subheader("Cells")
    progress(state, done)
    if state.show_texts:
        status.logs(state.store)


def progress(state: session.Session, done: Mapping[str, int]) -> None:
    """Policy x (model, task): rows done of planned, hatched until complete."""
    panels = frames.panels(state.arms)
    rows = []
    for label, mine in frames.by_arm(state.arms):
        found = {arm["panel"]: done_cell(done.get(arm["cell_id"], 0), arm["planned"]) for _, arm in mine.iterrows()}
        cells = [found.get(one.key, tables.MISSING) for one in panels]
        rows.append(tables.Row(frames.short_label(label, mine.iloc[0]), cells, "", mine.iloc[0]["rule"]))
    st.html(tables.render("Policy", [(one.model, one.task) for one in panels], rows))


def done_cell(found: int, planned: int) -> tables.Cell:
    """`46 % (48 of 104)`, hatched until all planned rows are there."""
    share = f"{100 * found / planned:.0f} %" if planned else "–"
    return tables.Cell(f"{share} ({found:,} of {planned:,})", "" if found >= planned else "incomplete")


st.title("Live")
st.caption(f"Is it running? Refreshed every {status.EVERY_SECONDS} seconds from the store's own files.")
panel(session.current())
