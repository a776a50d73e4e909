"""Tokens per second of every arm under one set of conditions, and accuracy against cost."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard import theme
from dashboard.charts import base

TOOLTIP = [
    alt.Tooltip("arm:N", title="Arm"),
    alt.Tooltip("tokens_per_second:Q", title="Tokens/s", format=",.0f"),
    alt.Tooltip("tokens_per_second_low:Q", title="least round", format=",.0f"),
    alt.Tooltip("tokens_per_second_high:Q", title="best round", format=",.0f"),
    alt.Tooltip("ratio_text:N", title="Ratio"),
    alt.Tooltip("rounds:Q", title="Rounds"),
]


def bars(frame: pd.DataFrame, arms: Sequence[str], title: str = "") -> alt.LayerChart:
    """One bar per arm with the range over its rounds and its label; a single round is a hollow bar.

    frame columns: arm, policy, tokens_per_second(_low, _high), rounds, label (`1,737 (2.23×)`), ratio_text.
    """
    colour = alt.Color("policy:N", scale=theme.colour_scale(frame["policy"]), legend=None)
    axis = alt.Axis(title=None, ticks=False, domain=False, labelPadding=10, labelLimit=320)
    scale = alt.Scale(domain=[0, 1.25 * float(frame["tokens_per_second_high"].max())], nice=False)
    each = alt.Chart(frame).encode(y=alt.Y("arm:N", sort=list(arms), axis=axis), tooltip=TOOLTIP)
    x = alt.X("tokens_per_second:Q", title="tokens/s", scale=scale)
    drawn = each.mark_bar(height=18, strokeWidth=2).encode(
        x=x, stroke=colour, fill=alt.condition("datum.rounds > 1", colour, alt.value("white"))
    )
    spread = each.mark_rule(strokeWidth=2, color=theme.INK).encode(
        x=alt.X("tokens_per_second_low:Q", scale=scale, title="tokens/s"), x2="tokens_per_second_high:Q"
    )
    text = each.mark_text(align="left", dx=8, fontSize=12, color=theme.INK).encode(
        x=alt.X("tokens_per_second_high:Q", scale=scale, title="tokens/s"), text="label:N"
    )
    return base.layered([drawn, spread, text], base.rows_height(len(arms)), title)


def frontier(frame: pd.DataFrame, x: str, x_title: str, title: str = "") -> alt.LayerChart:
    """Accuracy with its interval against a cost; one dot per policy, rule and keep.

    frame columns: arm, policy, rule, budget, accuracy, low, high (shares), n, complete (bool), and `x`; where present
    `x`_low and `x`_high are its range.
    """
    shown = base.scaled(frame, ["accuracy", "low", "high"])
    colour = alt.Color("policy:N", title=None, scale=theme.colour_scale(frame["policy"]))
    across = alt.X(f"{x}:Q", title=x_title, scale=alt.Scale(zero=False, padding=24),
                   axis=alt.Axis(format=",.4~r", tickCount=6))  # fmt: skip
    y = alt.Y("low:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    tooltip = [
        alt.Tooltip("arm:N", title="Arm"), alt.Tooltip("budget:N", title="Budget"),
        alt.Tooltip("accuracy:Q", title="Accuracy, %", format=".1f"), alt.Tooltip("n:N", title="Problems × samples"),
        alt.Tooltip(f"{x}:Q", title=x_title, format=",.0f"),
    ]  # fmt: skip
    each = alt.Chart(shown).encode(x=across, color=colour)
    layers = [each.mark_rule(strokeWidth=2).encode(y=y, y2="high:Q")]
    if f"{x}_low" in frame:
        layers.append(each.mark_rule(strokeWidth=2).encode(
            x=alt.X(f"{x}_low:Q", title=x_title, scale=alt.Scale(zero=False, padding=24)), x2=f"{x}_high:Q",
            y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False))))  # fmt: skip
    layers.append(each.mark_point(size=110, strokeWidth=2, opacity=1).encode(
        y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False)), tooltip=tooltip,
        fill=alt.condition("datum.complete", colour, alt.value("white")),
        shape=alt.Shape("policy:N", title=None, scale=theme.shape_scale(frame["policy"]))))  # fmt: skip
    return base.layered(layers, 320, title)
