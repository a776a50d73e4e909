"""Pieces that several pages share: panel grid, legend, downloads, links from a number to what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from urllib.parse import urlencode

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import frames, session, tables, theme

PANELS_PER_ROW = 2


def grid(panels: Sequence[frames.Panel]) -> Iterator[tuple[DeltaGenerator, frames.Panel]]:
    """One column per panel, PANELS_PER_ROW beside each other; a single panel gets the whole width."""
    width = min(PANELS_PER_ROW, len(panels))
    for start in range(0, len(panels), PANELS_PER_ROW):
        yield from zip(st.columns(width, gap="medium"), panels[start : start + width], strict=False)


def choose_panel(state: session.Session) -> frames.Panel:
    """The model and task that a page about one of them shows; a choice among one is not offered."""
    found = {panel.title: panel for panel in frames.panels(state.arms)}
    if len(found) == 1:
        return next(iter(found.values()))
    title = st.selectbox("Model and task", list(found), key="panel", bind="query-params")
    return found[title or next(iter(found))]


def arm_table(
    table: pd.DataFrame, columns: Sequence[str], cells: Sequence[Sequence[tables.Cell]], kinds: Sequence[str]
) -> None:
    """A table with one row per line of a labelled frame; model and task have a column where there are several."""
    where = ["Model · task"] if len(frames.panels(table)) > 1 else []
    rows = [
        tables.Row(
            frames.short_label(row["arm"], row),
            [*(tables.Cell(row["panel_title"], "text") for _ in where), *mine],
            kind,
            row["rule"],
        )
        for (_, row), mine, kind in zip(table.iterrows(), cells, kinds, strict=True)
    ]
    st.html(tables.render("Arm", [("", name) for name in [*where, *columns]], rows))


def legend(each_cell: str) -> None:
    """What marks, hatching and the numbers of a cell mean, below a table."""
    marks = [(mark.glyph, mark.text) for name, mark in theme.VERDICTS.items() if name != "equivalent"]
    glyphs([*marks, (theme.INCOMPLETE, "unfinished: hatched, never in a verdict")], each_cell)


def glyphs(items: Sequence[tuple[str, str]], more: str = "") -> None:
    """A line of glyphs with their meanings, and a sentence after them."""
    spans = " ".join(f"<span><b>{escape(glyph)}</b> {escape(text)}</span>" for glyph, text in items)
    st.html(f'<div class="eb-legend">{spans} {escape(more)}</div>')


def downloads(frame: pd.DataFrame, name: str) -> None:
    """CSV and Markdown of the table above."""
    with st.container(horizontal=True):
        st.download_button(
            "CSV", frame.to_csv(index=False), f"{name}.csv", "text/csv",
            key=f"{name}-csv", icon=":material/download:", on_click="ignore",
        )  # fmt: skip
        st.download_button(
            "Markdown", tables.markdown(frame), f"{name}.md", "text/markdown",
            key=f"{name}-md", icon=":material/download:", on_click="ignore",
        )  # fmt: skip


def problems_link(row: pd.Series, discordant: bool = False) -> str:
    """Address of the Problems page for the row's model and task."""
    choices = {"panel": row["panel_title"], **({"show": frames.Show.DIFFERING.value} if discordant else {})}
    return f"problems?{urlencode(choices)}"
