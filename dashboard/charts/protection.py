"""Score or protection: accuracy without and with the prompt protected, and how much of the prompt was kept."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard import theme
from dashboard.charts import base

TOOLTIP = [
    alt.Tooltip("policy:N", title="Policy"),
    alt.Tooltip("bare_accuracy:Q", title="Unprotected, %", format=".1f"),
    alt.Tooltip("accuracy:Q", title="Protected, %", format=".1f"),
    alt.Tooltip("change:Q", title="Change, points", format="+.1f"),
    alt.Tooltip("low:Q", title="95 % from", format="+.1f"),
    alt.Tooltip("high:Q", title="95 % to", format="+.1f"),
    alt.Tooltip("verdict:N", title="Verdict"),
    alt.Tooltip("problems:Q", title="Problems"),
]


def _rows(policies: Sequence[str]) -> alt.Y:
    axis = alt.Axis(title=None, ticks=False, domain=False, labelPadding=10, grid=False)
    return alt.Y("row:N", sort=list(policies), axis=axis, scale=alt.Scale(domain=list(policies)))


def dumbbells(frame: pd.DataFrame, rows: Sequence[str], title: str = "") -> alt.LayerChart:
    """One line per policy from accuracy without protection (hollow) to with it (filled).

    frame columns: row (label), policy, bare_accuracy, accuracy, change, low, high (shares), verdict, problems.
    """
    shown = base.scaled(frame, ["bare_accuracy", "accuracy", "change", "low", "high"])
    axis = alt.Axis(title="accuracy, %", tickCount=6)
    scale = alt.Scale(domain=[0, 100], nice=False)
    colour = alt.Color("policy:N", scale=theme.colour_scale(frame["policy"]), legend=None)
    each = alt.Chart(shown).encode(y=_rows(rows), color=colour, tooltip=TOOLTIP)
    line = each.mark_rule(strokeWidth=2.5).encode(x=alt.X("bare_accuracy:Q", scale=scale, axis=axis), x2="accuracy:Q")
    off = each.mark_point(size=95, strokeWidth=2, fill="white", opacity=1).encode(
        x=alt.X("bare_accuracy:Q", scale=scale, axis=axis)
    )
    on = each.mark_point(size=95, strokeWidth=2, filled=True, opacity=1).encode(
        x=alt.X("accuracy:Q", scale=scale, axis=axis)
    )
    return base.layered([line, off, on], base.rows_height(len(rows)), title)


def prompt_kept(frame: pd.DataFrame, rows: Sequence[str], title: str = "") -> alt.LayerChart:
    """Share of the prompt still cached at the end without protection, measured; one bar per policy.

    frame columns: row, policy, bare_prompt_kept (share).
    """
    shown = base.scaled(frame, ["bare_prompt_kept"])
    x = alt.X("bare_prompt_kept:Q", title="prompt kept unprotected, %", scale=alt.Scale(domain=[0, 100]))
    colour = alt.Color("policy:N", scale=theme.colour_scale(frame["policy"]), legend=None)
    each = alt.Chart(shown).encode(y=_rows(rows), x=x)
    bars = each.mark_bar(height=14).encode(color=colour)
    text = each.mark_text(align="left", dx=5, fontSize=12, color=theme.INK).encode(
        text=alt.Text("bare_prompt_kept:Q", format=".1f")
    )
    return base.layered([bars, text], base.rows_height(len(rows)), title)
