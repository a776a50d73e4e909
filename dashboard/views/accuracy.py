"""Accuracy: how good is every arm?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import frames, parts, session, tables, theme
from dashboard.charts import accuracy, base


def score_cell(arm: pd.Series, verdict: str | None) -> tables.Cell:
    """`87.4 ▲ ±1.6 (500×4)`; an unfinished arm is hatched, shows its done share and has no mark."""
    if arm["rows"] == 0:
        return tables.Cell("no rows yet", "incomplete", f"0 of {theme.count(arm['planned'])} rows")
    mark = theme.verdict_mark(verdict) if arm["complete"] else theme.INCOMPLETE
    text = theme.score(arm["accuracy"], arm["half_width"], arm["problems"], arm["samples"], mark)
    hover = (
        f"95 % interval {theme.percent(arm['low'])} to {theme.percent(arm['high'])}; "
        f"wrong {theme.percent(arm['wrong'])} %, truncated {theme.percent(arm['truncated'])} %, "
        f"no answer {theme.percent(arm['no_answer'])} %; cell {arm['cell_id']}"
    )
    if not arm["complete"]:
        done = f"{100 * arm['done']:.0f} % done"
        return tables.Cell(text, "incomplete", hover, parts.problems_link(arm), done)
    return tables.Cell(text, verdict or "", hover, parts.problems_link(arm))


def main(state: session.Session) -> None:
    """Table of all arms, then one panel of points with intervals per model and task."""
    st.title("Accuracy")
    st.caption(f"How good is every arm? Marks compare with {state.reference_text}: paired, 95 % interval.")
    arms, verdicts = state.arms, frames.verdicts(state.differences)
    panels = frames.panels(arms)
    rows = []
    for label, mine in frames.by_arm(arms):
        found = {arm["panel"]: score_cell(arm, verdicts.get(arm["cell_id"])) for _, arm in mine.iterrows()}
        first = mine.iloc[0]
        cells = [found.get(panel.key, tables.MISSING) for panel in panels]
        kind = frames.row_kind(mine, state.references)
        rows.append(tables.Row(frames.short_label(label, first), cells, kind, first["rule"]))
    st.html(tables.render("Policy", [(panel.model, panel.task) for panel in panels], rows))
    parts.legend("Each cell: percent ± half of the 95 % interval (problems × samples); the reference is tinted.")
    parts.downloads(frames.accuracy_export(arms, verdicts), "accuracy")

    domain = base.share_domain(arms.dropna(subset=["low", "high"]))
    drawn = arms[arms["rows"] > 0]
    for column, panel in parts.grid(panels):
        chart = accuracy.dots(drawn[drawn["panel"] == panel.key], state.order, domain, panel.title)
        column.altair_chart(chart, theme=None, width="stretch", alt=f"Accuracy with 95 % intervals: {panel.title}")
    st.caption("Point = share of correct answers, line = 95 % interval; dashed vertical line = full cache.")


main(session.current())
