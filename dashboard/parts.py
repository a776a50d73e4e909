"""Pieces that several pages share: panel grid, legend, downloads, links from a number to what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pandas as pd
import streamlit as st

from dashboard import frames, session, tables
from dashboard.contents.base import Charts, Content, Heading, Note, Table

PANELS_PER_ROW = 2


def choose_panel(state: session.Session) -> frames.Panel:
    """The model and task that a page about one of them shows; a choice among one is not offered."""
    found = {panel.title: panel for panel in frames.panels(state.arms)}
    if len(found) == 1:
        return next(iter(found.values()))
    title = st.selectbox("Model and task", list(found), key="panel", bind="query-params")
    return found[title or next(iter(found))]


def head(title: str, question: str) -> None:
    """Title and question of a page, for pages with choices between them and the rest."""
    st.title(title)
    st.caption(question)


def show(content: Content, with_head: bool = True) -> None:
    """Draw a page from top to bottom."""
    if with_head:
        head(content.title, content.question)
    for block in content.blocks:
        match block:
            case Heading():
                st.subheader(block.text)
            case Note():
                st.info(block.text, icon=":material/info:")
            case Charts():
                charts(block)
            case Table():
                table(block)


def charts(block: Charts) -> None:
    """Charts beside each other, PANELS_PER_ROW in a row; a single one gets the whole width."""
    width = min(PANELS_PER_ROW, max(1, len(block.charts)))
    for start in range(0, len(block.charts), PANELS_PER_ROW):
        row = block.charts[start : start + PANELS_PER_ROW]
        for column, (alt, chart) in zip(st.columns(width, gap="medium"), row, strict=False):
            column.altair_chart(chart, theme=None, width="stretch", alt=alt)
    if block.caption:
        st.caption(block.caption)


def table(block: Table) -> None:
    """A table, what its marks mean, and its downloads."""
    st.html(block.html)
    if block.legend or block.note:
        glyphs(block.legend, block.note)
    downloads(block.export, block.name)


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
