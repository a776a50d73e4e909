"""Forest plot of paired differences to the reference on one model and task: zero line, interval, verdict, counts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard import theme
from dashboard.charts import base

TOOLTIP = [
    alt.Tooltip("arm:N", title="Arm"),
    alt.Tooltip("reference:N", title="Reference"),
    alt.Tooltip("difference:Q", title="Difference, points", format="+.1f"),
    alt.Tooltip("low:Q", title="95 % from", format="+.1f"),
    alt.Tooltip("high:Q", title="95 % to", format="+.1f"),
    alt.Tooltip("verdict:N", title="Verdict"),
    alt.Tooltip("counts:N", title="Wins / losses / ties"),
    alt.Tooltip("p_sign:Q", title="Sign test p", format=".3g"),
    alt.Tooltip("n:N", title="Problems × samples"),
    alt.Tooltip("done:N", title="Rows done"),
]


def verdict_scale() -> alt.Scale:
    """Colour of each verdict; the domain is fixed so that panels agree."""
    return alt.Scale(domain=list(theme.VERDICTS), range=[mark.colour for mark in theme.VERDICTS.values()])


def forest(frame: pd.DataFrame, arms: Sequence[str], domain: tuple[float, float], title: str = "") -> alt.LayerChart:
    """One panel.

    frame columns: arm, reference, difference, low, high (shares), verdict (better, worse, unresolved, equivalent or
    None while incomplete), counts (`12 / 3 / 89`), p_sign, n, done (text), complete (bool).
    arms: rows from top to bottom; domain: axis in points shared by all panels.
    """
    shown = base.scaled(frame, ["difference", "low", "high"])
    shown["glyph"] = [
        theme.verdict_mark(verdict) if complete else theme.INCOMPLETE
        for verdict, complete in zip(shown["verdict"], shown["complete"], strict=True)
    ]
    shown["verdict"] = shown["verdict"].where(shown["complete"], "unresolved")
    signed = "datum.value > 0 ? '+' + datum.label : datum.label"
    axis = alt.Axis(title="difference, points", format="d", labelExpr=signed, tickCount=6, tickMinStep=1)
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    colour = alt.Color("verdict:N", scale=verdict_scale(), legend=None)
    zero = alt.Chart(shown).mark_rule(color=theme.INK, strokeWidth=1).encode(x=alt.datum(0, type="quantitative"))
    rows = alt.Chart(shown).encode(y=base.arm_axis(arms))
    bars, points = base.intervals(rows, "difference", scale, axis, colour)
    points = points.encode(tooltip=TOOLTIP)
    beside = rows.encode(x=alt.value("width"))
    glyphs = beside.mark_text(align="left", baseline="middle", fontSize=12, dx=10, fontWeight="bold").encode(
        text="glyph:N", color=colour
    )
    counts = beside.mark_text(align="left", baseline="middle", fontSize=12, dx=26, color=theme.MUTED).encode(
        text="counts:N"
    )
    return base.layered([zero, bars, points, glyphs, counts], base.rows_height(len(arms)), title)
