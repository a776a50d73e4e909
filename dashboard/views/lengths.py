"""Lengths: does an arm think longer, and did eviction happen at all?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, frames, parts, session, tables, theme
from dashboard.charts import lengths

COLUMNS = ["Median tokens", "10–90 %", "Truncated, %", "Never evicted, %", "Compression", "Rows"]


def cells(row: pd.Series) -> list[tables.Cell]:
    """One arm's lengths as table cells; compression = whole length / mean cached tokens per head."""
    evicts = pd.notna(row["compression"])
    return [
        tables.Cell(theme.count(row["median"])),
        tables.Cell(f"{theme.count(row['q10'])}–{theme.count(row['q90'])}"),
        tables.Cell(theme.percent(row["truncated"])),
        tables.Cell(theme.percent(row["never_evicted"]) if evicts else "–"),
        tables.Cell(f"{row['compression']:.1f}×" if evicts else "–"),
        tables.Cell(theme.count(row["rows"])),
    ]


def main(state: session.Session) -> None:
    """Panels of length quantiles over a common axis, then the numbers."""
    st.title("Lengths")
    st.caption("Does an arm think longer? Rows that never evict dilute every comparison, so their share is shown.")
    table = frames.joined(data.lengths(state.store, state.stamp, tuple(state.arms["cell_id"])), state.arms)
    if table.empty:
        st.info("No row in the store for this choice yet.", icon=":material/info:")
        return
    panels = frames.panels(table)
    for column, panel in parts.grid(panels):
        chart = lengths.quantiles(table[table["panel"] == panel.key], state.order, table["q90"].max(), panel.title)
        column.altair_chart(chart, theme=None, width="stretch", alt=f"Generated tokens per arm: {panel.title}")
    st.caption("Point = median, thick line = middle half, thin line = 10 to 90 %.")
    kinds = [frames.row_kind(table.iloc[[place]], state.references) for place in range(len(table))]
    parts.arm_table(table, COLUMNS, [cells(row) for _, row in table.iterrows()], kinds)
    parts.downloads(frames.length_export(table), "lengths")


main(session.current())
