"""Pieces that several pages share: panel grid, legend, downloads, links from a number to what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st
from altair.utils.schemapi import debug_mode

from dashboard import frames, session, tables
from dashboard.contents.base import Charts, Content, Heading, Note, Table

PANELS_PER_ROW = 2


@dataclass(frozen=True)
class Drawn:
    """Charts as Vega-Lite specifications whose datasets are frames; alt text of each, and the caption below them."""

    specs: Sequence[tuple[str, Mapping[str, Any]]]
    caption: str


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


def page(build: Callable[..., Content], state: session.Session, *more: Hashable, with_head: bool = True) -> None:
    """Draw what `build(state, *more)` says, from top to bottom; made once for the same choices."""
    content, blocks = _made(f"{build.__module__}.{build.__qualname__}", state.key, more, build, state)
    if with_head:
        head(content.title, content.question)
    show(blocks)


@st.cache_resource(max_entries=64, show_spinner=False)
def _made(
    name: str, key: Hashable, more: tuple[Hashable, ...], _build: Callable[..., Content], _state: session.Session
) -> tuple[Content, Sequence[Any]]:
    # Checking every chart against Vega-Lite's schema takes half of the time; tests do it.
    with debug_mode(False):
        content = _build(_state, *more)
        blocks = [drawn(block) if isinstance(block, Charts) else block for block in content.blocks]
    return replace(content, blocks=[]), blocks


def drawn(block: Charts) -> Drawn:
    """Charts as they are sent to the browser."""
    return Drawn([(text, _spec(chart)) for text, chart in block.charts], block.caption)


def _spec(chart: alt.LayerChart) -> Mapping[str, Any]:
    spec = chart.to_dict(validate=False)
    named = {name: pd.DataFrame(rows) for name, rows in spec.get("datasets", {}).items()}
    return {**spec, "datasets": named}


def show(blocks: Sequence[Any]) -> None:
    """Draw blocks from top to bottom."""
    for block in blocks:
        match block:
            case Heading():
                st.subheader(block.text)
            case Note():
                st.info(block.text, icon=":material/info:")
            case Drawn():
                charts(block)
            case Table():
                table(block)


def charts(block: Drawn) -> None:
    """Charts beside each other, PANELS_PER_ROW in a row; a single one gets the whole width."""
    width = min(PANELS_PER_ROW, max(1, len(block.specs)))
    for start in range(0, len(block.specs), PANELS_PER_ROW):
        row = block.specs[start : start + PANELS_PER_ROW]
        for column, (text, spec) in zip(st.columns(width, gap="medium"), row, strict=False):
            column.vega_lite_chart(spec=dict(spec), theme=None, width="stretch", alt=text)
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
            "CSV", lambda: frame.to_csv(index=False), f"{name}.csv", "text/csv",
            key=f"{name}-csv", icon=":material/download:", on_click="ignore",
        )  # fmt: skip
        st.download_button(
            "Markdown", lambda: tables.markdown(frame), f"{name}.md", "text/markdown",
            key=f"{name}-md", icon=":material/download:", on_click="ignore",
        )  # fmt: skip
