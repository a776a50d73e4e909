"""Problems: where do the arms differ?"""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from dashboard import data, frames, parts, session, theme

SHOWN = 200


def styled(grid: frames.ProblemGrid) -> Any:
    """The grid with cells shaded by the share of right samples; glyphs carry the outcome without the colour."""

    def shade(column: pd.Series) -> list[str]:
        shares = grid.share[column.name]
        return [
            "color: #8A94A0" if pd.isna(share) else f"background-color: rgba(0, 158, 115, {0.06 + 0.34 * share:.2f})"
            for share in shares
        ]

    return grid.text.style.apply(shade, axis=0)


def main(state: session.Session) -> None:
    """Problem x arm grid, hardest first; a click on a cell leads to its transcript."""
    st.title("Problems")
    st.caption("Where do the arms differ? One row per problem, hardest first; click a cell, then open its transcript.")
    panel = parts.choose_panel(state)
    show = st.segmented_control("Show", list(frames.Show), default=frames.Show.ALL, required=True, key="show",
                                bind="query-params")  # fmt: skip
    cells = tuple(frames.of_panel(state.arms, panel)["cell_id"])
    pages = max(1, -(-data.problems(state.store, state.stamp, cells)["problem_id"].nunique() // SHOWN))
    first = 0
    if pages > 1:
        first = SHOWN * (st.number_input(f"Page (1 to {pages})", 1, pages, 1, key="page", bind="query-params") - 1)
    grid = data.problem_grid(state.store, state.stamp, cells, frames.Show(show), first, SHOWN)
    if grid.text.empty:
        st.info(f"No problem of {panel.title} to show with this choice.", icon=":material/info:")
        return
    st.caption(f"{grid.total:,} problems; showing {first + 1:,} to {first + len(grid.text):,}.")
    plain = f" · {frames.RULES['prompt']}"
    columns = {arm: st.column_config.TextColumn(arm.removesuffix(plain), help=arm) for arm in grid.text.columns}
    event = st.dataframe(
        styled(grid), on_select="rerun", selection_mode="single-cell", key="grid", width="stretch",
        column_config={"_index": "problem", **columns}, height=min(36 * (len(grid.text) + 1) + 4, 640),
    )  # fmt: skip
    open_selected(grid, panel, event["selection"]["cells"])
    marks = [(mark.glyph, mark.text) for mark in theme.OUTCOMES.values()]
    parts.glyphs(marks, "Shading: share right; white: no row yet. A policy without a rule is prompt protected.")
    parts.downloads(grid.text.reset_index(), "problems")


def open_selected(grid: frames.ProblemGrid, panel: frames.Panel, cells: list[tuple[int, str]]) -> None:
    """A link from the selected cell to its transcript, beside the reference's."""
    if not cells:
        return
    row, arm = cells[0]
    problem = grid.text.index[row]
    if arm not in grid.text.columns:
        arm = grid.text.columns[0]
    st.page_link(
        "views/transcript.py",
        label=f"Open the transcript of {arm} on {problem}",
        icon=":material/article:",
        query_params={"panel": panel.title, "problem": problem, "left": arm},
    )


main(session.current())
