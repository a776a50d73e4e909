"""What all charts share: finishing touches, axes over shares and points, domains that panels have in common."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard import frames, theme

ROW_HEIGHT = 36


def layered(layers: Sequence[alt.Chart], height: int, title: str = "") -> alt.LayerChart:
    """Layers as one chart with the common configuration, as wide as its place on the page.

    height: of the plot alone, in pixels.
    """
    # With Streamlit's default ("fit") the height would have to hold axes, title and legend as well.
    autosize = alt.AutoSizeParams(type="fit-x", contains="padding")
    named = {"title": title} if title else {}
    return (
        alt.LayerChart(layer=list(layers))
        .properties(width="container", height=height, autosize=autosize, **named)
        .configure(**theme.chart_config())
    )


def rows_height(rows: int) -> int:
    """Height of a plot with one row per arm, in pixels."""
    return max(2, rows) * ROW_HEIGHT


def scaled(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Copy of the frame with share columns multiplied by 100, as axes and tooltips show them."""
    out = frame.copy()
    out[list(columns)] = out[list(columns)].astype(float) * 100
    return out


def share_domain(frame: pd.DataFrame, low: str = "low", high: str = "high") -> tuple[float, float]:
    """Percent axis over all panels: multiples of 10 around the intervals, within 0 to 100."""
    if frame.empty:
        return 0.0, 100.0
    least, most = 100 * float(frame[low].min()), 100 * float(frame[high].max())
    return max(0.0, 10 * (least // 10)), min(100.0, 10 * -(-most // 10))


def difference_domain(frame: pd.DataFrame, low: str = "low", high: str = "high") -> tuple[float, float]:
    """Axis in points over all panels: always shows zero, with a margin of 5 % of the range and at least one point."""
    values = pd.concat([frame[low], frame[high]]).dropna() * 100
    if values.empty:
        return -1.0, 1.0
    least, most = min(0.0, float(values.min())), max(0.0, float(values.max()))
    margin = max(1.0, 0.05 * (most - least))
    return least - margin, most + margin


def intervals(
    rows: alt.Chart, value: str, scale: alt.Scale, axis: alt.Axis, colour: alt.Color
) -> tuple[alt.Chart, alt.Chart]:
    """Interval bars from `low` to `high` and points at column `value`; an incomplete arm is dashed and hollow.

    rows: a chart of a frame with columns low, high, complete (bool), one row per arm.
    """
    bars = rows.mark_rule(strokeWidth=2.5, clip=True).encode(
        x=alt.X("low:Q", scale=scale, axis=axis),
        x2="high:Q",
        color=colour,
        strokeDash=alt.condition("datum.complete", alt.value([1, 0]), alt.value([3, 3])),
    )
    points = rows.mark_point(size=95, strokeWidth=2, opacity=1).encode(
        x=alt.X(f"{value}:Q", scale=scale, axis=axis),
        color=colour,
        fill=alt.condition("datum.complete", colour, alt.value("white")),
    )
    return bars, points


def arm_axis(arms: Sequence[str]) -> alt.Y:
    """One row per arm in the given order, policy above rule; labels carry the meaning, so there is no axis title."""
    two = f"indexof(datum.label, ' · ') < 0 ? [datum.label, '{frames.RULES[None]}'] : split(datum.label, ' · ')"
    # The first line is centred on the row: lift it by half a line.
    axis = alt.Axis(title=None, ticks=False, domain=False, labelPadding=10, grid=False, labelExpr=two, labelOffset=-7)
    return alt.Y("arm:N", sort=list(arms), axis=axis, scale=alt.Scale(domain=list(arms)))
