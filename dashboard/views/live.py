"""Live: is it running?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard import data, frames, session, tables, theme

EVERY_SECONDS = 5


@st.fragment(run_every=EVERY_SECONDS)
def panel(state: session.Session) -> None:
    """Failures first, then engines by heartbeat, then the share done of every cell; reads small files only."""
    failures = data.failures(state.store)
    if failures:
        st.subheader("Failures")
        st.html(tables.render("Chunk", [("", "attempt"), ("", "reason")], [
            tables.Row(f"{one['cell_id']} s{one['sample']} b{one['block']}",
                       [tables.Cell(str(one["attempt"])), tables.Cell(str(one["reason"]), "wrap")])
            for one in failures
        ]))  # fmt: skip
    st.subheader("Engines")
    engines = data.engines(state.store)
    if engines:
        columns = ["state", "heartbeat", "running", "waiting", "finished", "tokens"]
        st.html(tables.render("Engine", [("", name) for name in columns], [engine_row(one) for one in engines]))
    else:
        st.info("No engine is running on this store. Start or resume a job with: evictbench run JOB",
                icon=":material/info:")  # fmt: skip
    st.subheader("Cells")
    progress(state)


def engine_row(engine: Mapping[str, Any]) -> tables.Row:
    """One engine's last heartbeat; hatched when it is older than three beats."""
    age = data.seconds_since(engine.get("updated_at"))
    late = age is None or age > 3 * EVERY_SECONDS
    cells = [
        tables.Cell(str(engine.get("state", "–")), "text"),
        tables.Cell("never" if age is None else f"{theme.duration(age)} ago", "incomplete" if late else ""),
    ]
    for name in ("running", "waiting", "finished", "generated_tokens"):
        value = engine.get(name)
        cells.append(tables.Cell(theme.count(value) if isinstance(value, int | float) else "–"))
    return tables.Row(str(engine.get("engine_id", "?")), cells)


def progress(state: session.Session) -> None:
    """Policy x (model, task): rows done of planned, hatched until complete."""
    done = data.done_rows(state.store)
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
st.caption(f"Is it running? Refreshed every {EVERY_SECONDS} seconds from the store's own files.")
panel(session.current())
