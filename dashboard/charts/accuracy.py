"""Accuracy of every arm on one model and task: a point with its interval; the full cache is a line to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard import theme
from dashboard.charts import base

TOOLTIP = [
    alt.Tooltip("arm:N", title="Arm"),
    alt.Tooltip("accuracy:Q", title="Accuracy, %", format=".1f"),
    alt.Tooltip("low:Q", title="95 % from", format=".1f"),
    alt.Tooltip("high:Q", title="95 % to", format=".1f"),
    alt.Tooltip("n:N", title="Problems × samples"),
    alt.Tooltip("truncated:Q", title="Truncated, %", format=".1f"),
    alt.Tooltip("no_answer:Q", title="No answer, %", format=".1f"),
    alt.Tooltip("done:Q", title="Rows done, %", format=".0f"),
    alt.Tooltip("cell_id:N", title="Cell"),
]


def dots(frame: pd.DataFrame, arms: Sequence[str], domain: tuple[float, float], title: str = "") -> alt.LayerChart:
    """One panel.

    frame columns: arm, policy, accuracy, low, high, truncated, no_answer, done (shares), n, cell_id, complete (bool).
    arms: rows from top to bottom; those absent from the frame stay empty. domain: percent axis shared by all panels.
    An incomplete arm is a hollow point with a dashed interval.
    """
    shown = base.scaled(frame, ["accuracy", "low", "high", "truncated", "no_answer", "done"])
    axis = alt.Axis(title="accuracy, %", tickCount=6)
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    colour = alt.Color("policy:N", scale=theme.colour_scale(shown["policy"]), legend=None)
    rows = alt.Chart(shown).encode(y=base.arm_axis(arms))
    bars, points = base.intervals(rows, "accuracy", scale, axis, colour)
    points = points.encode(
        tooltip=TOOLTIP, shape=alt.Shape("policy:N", scale=theme.shape_scale(shown["policy"]), legend=None)
    )
    layers = [bars, points]
    full = shown[shown["policy"] == "full"]
    if not full.empty:
        line = alt.Chart(full).mark_rule(strokeDash=[5, 4], color=theme.MUTED)
        layers.insert(0, line.encode(x=alt.X("mean(accuracy):Q", scale=scale, axis=axis)))
    return base.layered(layers, base.rows_height(len(arms)), title)
