"""Transcript: why this one? One generation as text, or two side by side from the first place where they differ."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, frames, parts, session, tables, texts, theme

FACTS = {
    "verdict": "Verdict", "extracted": "Answer found", "n_output": "Generated tokens", "n_prompt": "Prompt tokens",
    "finish_reason": "Finished by", "events": "Evictions", "prompt_kept_min": "Prompt kept, least head",
    "cached_peak": "Peak cached tokens", "decode_tokens_per_second": "Tokens/s while decoding", "row_id": "Row",
}  # fmt: skip


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
    st.html(tables.render("", [("", arm) for arm in found], [
        tables.Row(title, [tables.Cell(fact(name, row.get(name) if row else None), "text") for row in found.values()])
        for name, title in FACTS.items()
        if state.show_texts or name != "extracted"
    ]))  # fmt: skip
    if not state.show_texts:
        st.warning("Texts are hidden on this dashboard (it was started with --hide-texts).", icon=":material/lock:")
        return
    show_texts({arm: row["text"] if row else None for arm, row in found.items()})


def choose_rows(state: session.Session, cells: pd.DataFrame, outcomes: pd.DataFrame) -> dict[str, str]:
    """Arm labels and row ids of the two sides; one side when both choices name the same arm."""
    arms = frames.arm_order(cells)
    reference = frames.reference_arm(cells, state.reference)
    columns = st.columns([2, 1, 3, 3])
    problem = columns[0].selectbox("Problem", frames.problem_order(outcomes), key="problem", bind="query-params")
    samples = sorted(outcomes[outcomes["problem_id"] == problem]["sample"].unique())
    sample = columns[1].selectbox("Sample", samples, key="sample")
    right = arms.index(reference) if reference in arms else 0
    left_arm = columns[2].selectbox("Arm", arms, index=(right + 1) % len(arms), key="left", bind="query-params")
    right_arm = columns[3].selectbox("Beside", arms, index=right, key="right", bind="query-params")
    ids = dict(zip(cells["arm"], cells["cell_id"], strict=True))
    return {arm: f"{ids[arm]}/{problem}/{sample}" for arm in (left_arm, right_arm)}


def show_texts(found: dict[str, str | None]) -> None:
    """Both texts; the part that all have in common is grey, and where they part is said in words."""
    present = [text for text in found.values() if text is not None]
    shared = texts.first_difference(*present) if len(present) == 2 else 0
    if len(present) == 2:
        same = present[0] == present[1]
        st.markdown("Both texts are the same." if same else f"They share the first **{shared:,}** characters.")
    longest = max(map(len, present), default=0)
    start = 0
    if longest > texts.WINDOW:
        start = st.slider("From character", 0, longest - texts.WINDOW, min(shared, longest - texts.WINDOW))
    for column, (arm, text) in zip(st.columns(len(found)), found.items(), strict=True):
        column.markdown(f"**{arm}**")
        if text is None:
            column.info("This row is not in the store yet.", icon=":material/info:")
        else:
            column.html(texts.panel(text, shared, start))


main(session.current())
