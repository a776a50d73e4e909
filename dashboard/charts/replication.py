"""Published numbers beside the store's: whiskers are the interval in which a repetition of the publication falls."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dashboard import theme
from dashboard.charts import base

STATUSES = {
    "consistent": theme.Mark("●", theme.BLUE, "consistent"),
    "deviates": theme.Mark("▲", theme.VERMILION, "deviates"),
    "differs by design": theme.Mark("◆", theme.PURPLE, "differs by design"),
    "not run": theme.Mark("○", theme.GREY, "not run"),
}


def whiskers(frame: pd.DataFrame, title: str = "") -> alt.LayerChart:
    """One line per published number: whisker = prediction interval, point = our estimate, tick = as published.

    frame columns: number (label), value, estimate, predicted_low, predicted_high, status, reason.
    """
    axis = alt.Axis(title=None, ticks=False, domain=False, labelLimit=420, labelPadding=8)
    y = alt.Y("number:N", sort=list(frame["number"]), axis=axis)
    colour = alt.Color("status:N", title=None, scale=alt.Scale(
        domain=list(STATUSES), range=[mark.colour for mark in STATUSES.values()]))  # fmt: skip
    shape = alt.Shape("status:N", title=None, scale=alt.Scale(
        domain=list(STATUSES), range=["circle", "triangle-up", "diamond", "circle"]))  # fmt: skip
    tooltip = ["number:N", "published:N", "estimate:Q", "predicted_low:Q", "predicted_high:Q", "status:N", "reason:N"]
    each = alt.Chart(frame).encode(y=y, tooltip=tooltip)
    whisker = each.mark_rule(strokeWidth=2.5).encode(
        x=alt.X("predicted_low:Q", title="value in the number's own unit"), x2="predicted_high:Q", color=colour
    )
    ours = each.mark_point(size=80, filled=True, opacity=1).encode(x="estimate:Q", color=colour, shape=shape)
    theirs = each.mark_tick(thickness=2.5, size=16, color=theme.INK).encode(x="value:Q")
    return base.layered([whisker, ours, theirs], max(80, 22 * len(frame)), title)
