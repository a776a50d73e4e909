"""What survives in the cache: share of tokens still held, by age; log colour, because the tail separates policies."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard import frames, theme
from dashboard.charts import base

# A linear colour scale hides the tail, the very thing that separates policies. Shares below this look the same.
FLOOR = 0.01
TOOLTIP = [
    alt.Tooltip("arm:N", title="Arm"),
    alt.Tooltip("age:N", title="Age, tokens"),
    alt.Tooltip("held:Q", title="Share held", format=".3f"),
    alt.Tooltip("rows:Q", title="Rows", format=","),
]


def heat_map(frame: pd.DataFrame, arms: Sequence[str], ages: Sequence[str], title: str = "") -> alt.LayerChart:
    """Arms x age bins; frame columns: arm, age (`16–31`), held (share in [0, 1]), rows."""
    shown = frame.assign(clamped=frame["held"].clip(lower=FLOOR), text=frame["held"].map(percent_text))
    shade = alt.Color(
        "clamped:Q",
        title="share of tokens of this age still held",
        scale=alt.Scale(type="log", domain=[FLOOR, 1], scheme="blues", clamp=True),
        legend=alt.Legend(gradientLength=260, format=".0%", values=[0.01, 0.03, 0.1, 0.3, 1]),
    )
    x = alt.X("age:N", sort=list(ages), title="age of the token, tokens", axis=alt.Axis(labelAngle=-40, ticks=False))
    cells = alt.Chart(shown).encode(y=base.arm_axis(arms), x=x)
    rects = cells.mark_rect(stroke="white", strokeWidth=1).encode(color=shade, tooltip=TOOLTIP)
    numbers = cells.mark_text(fontSize=11).encode(
        text="text:N", color=alt.condition(alt.datum.held > 0.12, alt.value("white"), alt.value(theme.INK))
    )
    return base.layered([rects, numbers], base.rows_height(len(arms)), title)


def percent_text(share: float) -> str:
    """`12%`; `<1%` for what rounds to nothing and is not nothing."""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def lines(frame: pd.DataFrame, theory: pd.DataFrame, title: str = "") -> alt.LayerChart:
    """Share held against age on log-log axes, one line per arm, and the geometric law of a uniform draw dashed.

    frame columns: arm, policy, rule, age, age_from (tokens), held, rows; theory columns: age_from, held.
    """
    x = alt.X("age_from:Q", title="age of the token, tokens", scale=alt.Scale(type="log", base=2))
    y = alt.Y("clamped:Q", title="share held", scale=alt.Scale(type="log", domain=[FLOOR, 1], clamp=True),
              axis=alt.Axis(format=".0%", values=[0.01, 0.03, 0.1, 0.3, 1]))  # fmt: skip
    shown = frame.assign(clamped=frame["held"].clip(lower=FLOOR))
    colour = alt.Color("policy:N", title=None, scale=theme.colour_scale(frame["policy"]))
    held = alt.Chart(shown).encode(x=x, y=y, detail="arm:N", color=colour)
    measured = held.mark_line(strokeWidth=2)
    points = held.mark_point(size=60, strokeWidth=2, filled=True, opacity=1).encode(
        shape=alt.Shape("rule:N", title=None, sort=list(frames.RULES.values())), tooltip=TOOLTIP
    )
    law = (
        alt.Chart(theory.assign(clamped=theory["held"].clip(lower=FLOOR)))
        .mark_line(strokeDash=[6, 4], color=theme.INK, strokeWidth=1.5)
        .encode(x=x, y=y)
    )
    return base.layered([measured, points, law], 300, title)
