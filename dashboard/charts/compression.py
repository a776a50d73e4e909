"""Curves over keep on one model and task, and below them the paired difference to the reference at every point."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dashboard import frames, theme
from dashboard.charts import base

TOOLTIP = [
    alt.Tooltip("arm:N", title="Arm"),
    alt.Tooltip("keep:Q", title="Keep, tokens", format=","),
    alt.Tooltip("compression:Q", title="Full cache's mean length / keep", format=".1f"),
    alt.Tooltip("accuracy:Q", title="Accuracy, %", format=".1f"),
    alt.Tooltip("difference:Q", title="Difference, points", format="+.1f"),
    alt.Tooltip("difference_low:Q", title="95 % from", format="+.1f"),
    alt.Tooltip("difference_high:Q", title="95 % to", format="+.1f"),
    alt.Tooltip("n:N", title="Problems × samples"),
]


def _x(frame: pd.DataFrame) -> alt.X:
    """Compression in doublings where the full cache was run, else keep; strongest compression on the right."""
    if frame["compression"].notna().all():
        axis = alt.Axis(labelExpr="format(datum.value, '.3~g') + '×'", tickCount=6)
        return alt.X("compression:Q", title="compression: full cache's mean length / keep", axis=axis,
                     scale=alt.Scale(type="log", base=2, nice=False, padding=24))  # fmt: skip
    return alt.X("keep:Q", title="keep, tokens", scale=alt.Scale(type="log", base=2, reverse=True, padding=24))


def curves(frame: pd.DataFrame, reference: str, full: float | None, title: str = "") -> alt.LayerChart:
    """Accuracy against compression, one line per arm; only the reference has a band.

    frame columns: arm, policy, rule, keep, compression, accuracy, low, high (shares), n, complete (bool), and the
    difference columns of `differences`. reference: arm label; full: accuracy of the full cache (dashed) or None.
    """
    shown = base.scaled(frame, ["accuracy", "low", "high", "difference", "difference_low", "difference_high"])
    shown["thick"] = shown["arm"] == reference
    y = alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    colour = alt.Color("policy:N", title=None, scale=theme.colour_scale(frame["policy"]))
    rows = alt.Chart(shown).encode(x=_x(frame), y=y, color=colour, detail="arm:N")
    mine = alt.Chart(shown[shown["thick"]])
    band = mine.mark_area(opacity=0.15, color=theme.GREY).encode(
        x=_x(frame), y=alt.Y("low:Q", title="accuracy, %", scale=alt.Scale(zero=False)), y2="high:Q"
    )
    lines = rows.mark_line().encode(
        strokeWidth=alt.condition("datum.thick", alt.value(3.5), alt.value(1.5)),
        strokeDash=alt.StrokeDash("rule:N", title=None, sort=list(frames.RULES.values())),
    )
    points = rows.mark_point(size=80, strokeWidth=2, opacity=1).encode(
        fill=alt.condition("datum.complete", colour, alt.value("white")),
        shape=alt.Shape("policy:N", title=None, scale=theme.shape_scale(frame["policy"])),
        tooltip=TOOLTIP,
    )
    layers = [band, lines, points] if len(shown[shown["thick"]]) > 1 else [lines, points]
    if full is not None:
        bound = alt.Chart(pd.DataFrame({"full": [100 * full]})).mark_rule(strokeDash=[5, 4], color=theme.MUTED)
        layers.insert(0, bound.encode(y=alt.Y("full:Q", title="accuracy, %", scale=alt.Scale(zero=False))))
    return base.layered(layers, 280, title)


def differences(frame: pd.DataFrame, title: str = "") -> alt.LayerChart:
    """Difference to the reference at the same keep with its interval, at every point of the curves.

    frame columns as in `curves`; rows without a difference (the reference itself) are left out.
    """
    compared = frame.dropna(subset=["difference"])
    shown = base.scaled(compared, ["accuracy", "difference", "difference_low", "difference_high"])
    y = alt.Y("difference_low:Q", title="difference, points")
    colour = alt.Color("policy:N", title=None, scale=theme.colour_scale(frame["policy"]))
    # Arms at the same keep would cover each other.
    x = alt.XOffset("arm:N")
    place = alt.X("keep:O", title="keep, tokens", sort="descending", axis=alt.Axis(labelAngle=0, format=","))
    zero = alt.Chart(shown).mark_rule(color=theme.INK).encode(y=alt.datum(0, type="quantitative"))
    rows = alt.Chart(shown).encode(x=place, xOffset=x, color=colour)
    bars = rows.mark_rule(strokeWidth=2.5).encode(
        y=y, y2="difference_high:Q", strokeDash=alt.condition("datum.complete", alt.value([1, 0]), alt.value([3, 3]))
    )
    points = rows.mark_point(size=80, strokeWidth=2, opacity=1).encode(
        y=alt.Y("difference:Q", title="difference, points"),
        fill=alt.condition("datum.complete", colour, alt.value("white")),
        shape=alt.Shape("policy:N", title=None, scale=theme.shape_scale(frame["policy"])),
        tooltip=TOOLTIP,
    )
    return base.layered([zero, bars, points], 220, title)
