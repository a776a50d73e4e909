"""How long every arm generates: quantiles of generated tokens on one model and task."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard import theme
from dashboard.charts import base

TOOLTIP = [
    alt.Tooltip("arm:N", title="Arm"),
    alt.Tooltip("median:Q", title="Median, tokens", format=",.0f"),
    alt.Tooltip("q25:Q", title="25 %", format=",.0f"),
    alt.Tooltip("q75:Q", title="75 %", format=",.0f"),
    alt.Tooltip("q10:Q", title="10 %", format=",.0f"),
    alt.Tooltip("q90:Q", title="90 %", format=",.0f"),
    alt.Tooltip("rows:Q", title="Rows", format=","),
]


def quantiles(frame: pd.DataFrame, arms: Sequence[str], most: float, title: str = "") -> alt.LayerChart:
    """One panel: thin line 10-90 %, thick line 25-75 %, point at the median.

    frame columns: arm, policy, q10, q25, median, q75, q90 (tokens), rows. most: end of the axis in tokens, shared.
    """
    scale = alt.Scale(domain=[0, most], nice=True)
    axis = alt.Axis(title="generated tokens", tickCount=6)
    colour = alt.Color("policy:N", scale=theme.colour_scale(frame["policy"]), legend=None)
    rows = alt.Chart(frame).encode(y=base.arm_axis(arms), color=colour, tooltip=TOOLTIP)
    thin = rows.mark_rule(strokeWidth=1.5).encode(x=alt.X("q10:Q", scale=scale, axis=axis), x2="q90:Q")
    thick = rows.mark_rule(strokeWidth=8, opacity=0.35).encode(x=alt.X("q25:Q", scale=scale, axis=axis), x2="q75:Q")
    point = rows.mark_point(filled=True, size=95, opacity=1).encode(
        x=alt.X("median:Q", scale=scale, axis=axis),
        shape=alt.Shape("policy:N", scale=theme.shape_scale(frame["policy"]), legend=None),
    )
    return base.layered([thin, thick, point], base.rows_height(len(arms)), title)
