"""Retention: what survives in the cache?"""

from __future__ import annotations

import streamlit as st

from dashboard import data, frames, parts, session
from dashboard.charts import retention


def main(state: session.Session) -> None:
    """Heat map of the share still held by age, and the same as lines beside the law of a uniform draw."""
    st.title("Retention")
    st.caption(
        "What survives? Share of the tokens of an age that a head still holds when the generation ends, mean over "
        "layers, heads and rows. The prompt is among the oldest tokens."
    )
    panel = parts.choose_panel(state)
    cells = frames.of_panel(state.arms, panel)
    held = frames.joined(data.retention(state.store, state.stamp, tuple(cells["cell_id"])), cells)
    if held.empty:
        st.info(f"No row with an eviction trace for {panel.title} yet.", icon=":material/info:")
        return
    order = [arm for arm in state.order if arm in set(held["arm"])]
    ages = list(dict.fromkeys(held.sort_values("age_from")["age"]))
    chart = retention.heat_map(held, order, ages, panel.title)
    st.altair_chart(chart, theme=None, width="stretch", alt=f"Share of tokens still held by age: {panel.title}")
    reference = frames.reference_arm(cells, state.reference)
    law = data.retention_law(state.store, state.stamp, frames.cell_of(cells, reference))
    st.altair_chart(retention.lines(held, law), theme=None, width="stretch", alt="Share held against age, with the law")
    st.caption(
        "Dashed: what a uniform draw keeps on average at this budget, ((K′−r−prot)/(K′−prot))ⁿ after n events, with "
        f"the prompt of the reference arm ({reference})."
    )


main(session.current())
