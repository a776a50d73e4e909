"""Transcript: why this one? One generation as text, or two side by side from the first place where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import data, frames, parts, session, shading, texts, theme

# Characters of the shared beginning shown before the place where two texts part.
CONTEXT = 240
SHADES = [("█", "held by all heads"), ("░", "held by few"), ("s̶t̶r̶u̶c̶k̶", "gone in every layer and head")]
FACTS = {
    "verdict": "",
    "extracted": "answer",
    "n_output": "generated tokens",
    "n_prompt": "prompt tokens",
    "finish_reason": "finished by",
    "events": "evictions",
    "prompt_kept_min": "prompt kept, least head",
    "cached_peak": "peak cached tokens",
}


def fact(name: str, value: object) -> str:
    """A fact as people read it; an en dash where the row has none."""
    if value is None or value != value:
        return "–"
    if name == "verdict":
        mark = theme.OUTCOMES.get(str(value))
        return f"{mark.glyph} {mark.text}" if mark else str(value)
    if name == "prompt_kept_min":
        return f"{100 * float(str(value)):.1f} %"
    if isinstance(value, float):
        return f"{value:,.1f}" if value != round(value) else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main(state: session.Session) -> None:
    """Choices of problem, sample and the two arms; facts of both rows; their texts."""
    st.title("Transcript")
    st.caption("Why this one? Two arms on the same problem and seed; the shared beginning is grey.")
    panel = parts.choose_panel(state)
    cells = frames.of_panel(state.arms, panel)
    outcomes = data.problems(state.store, state.stamp, tuple(cells["cell_id"]))
    if outcomes.empty:
        st.info(f"No row of {panel.title} yet.", icon=":material/info:")
        return
    rows = choose_rows(state, cells, outcomes)
    found = {arm: data.transcript(state.store, row_id, state.show_texts) for arm, row_id in rows.items()}
    present = [row["text"] for row in found.values() if row and state.show_texts]
    shared = texts.first_difference(*present) if len(present) == 2 else 0
    start = window_start(present, shared) if present else 0
    shade = bool(present) and st.toggle("Shade by what the cache still held", key="shade", bind="query-params")
    held = {arm: shading.stretches(row, len(row["text"])) if row and shade else [] for arm, row in found.items()}
    for column, (arm, row) in zip(st.columns(len(found)), found.items(), strict=True):
        column.html(f'<div class="eb-facts"><b>{escape(arm)}</b><br>{facts(row, state.show_texts)}</div>')
        if row is None:
            column.info("This row is not in the store yet.", icon=":material/info:")
        elif state.show_texts:
            column.html(texts.panel(row["text"], shared, start, held[arm]))
    if any(held.values()):
        parts.glyphs(SHADES, "by age at the end of the generation (measured; the prompt is not shown).")
    if not state.show_texts:
        st.warning("Texts are hidden on this dashboard (it was started with --hide-texts).", icon=":material/lock:")


def facts(row: Mapping[str, Any] | None, show_texts: bool) -> str:
    """HTML of what the store knows of a row; the answer found is part of the text."""
    if row is None:
        return ""
    shown = [name for name in FACTS if show_texts or name != "extracted"]
    items = " ".join(f"<span>{escape(FACTS[name])} <b>{escape(fact(name, row[name]))}</b></span>" for name in shown)
    return f"{items}<br>row <code>{escape(str(row['row_id']))}</code>"


def window_start(present: Sequence[str], shared: int) -> int:
    """Where the texts are shown from: just before they part, unless someone wants the beginning or another place."""
    longest = max(map(len, present))
    if len(present) == 2:
        same = present[0] == present[1]
        text = "Both texts are the same." if same else f"They share the first **{shared:,}** of {longest:,} characters."
        st.markdown(text)
        near = same or shared <= CONTEXT
        if near or st.toggle("From the beginning", key="beginning", bind="query-params"):
            shared = 0
    if longest <= texts.WINDOW:
        return max(0, shared - CONTEXT)
    return st.slider("From character", 0, longest - 1, max(0, shared - CONTEXT))


def choose_rows(state: session.Session, cells: pd.DataFrame, outcomes: pd.DataFrame) -> dict[str, str]:
    """Arm labels and row ids of the two sides; one side when both choices name the same arm."""
    arms = frames.arm_order(cells)
    reference = frames.reference_arm(cells, state.reference)
    top, bottom = st.columns([3, 1]), st.columns(2)
    problem = top[0].selectbox("Problem", frames.problem_order(outcomes), key="problem", bind="query-params")
    samples = data.samples(state.store, state.stamp, tuple(cells["cell_id"]), str(problem))
    sample = top[1].selectbox("Sample", samples, key="sample")
    right = arms.index(reference) if reference in arms else 0
    left_arm = bottom[0].selectbox("Arm", arms, index=(right + 1) % len(arms), key="left", bind="query-params")
    right_arm = bottom[1].selectbox("Beside", arms, index=right, key="right", bind="query-params")
    ids = dict(zip(cells["arm"], cells["cell_id"], strict=True))
    return {arm: f"{ids[arm]}/{problem}/{sample}" for arm in (left_arm, right_arm)}


main(session.current())
