"""Accuracy: how good is every arm?"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from dashboard import frames, links, tables, theme
from dashboard.charts import accuracy, base
from dashboard.contents.base import Charts, Content, Table, left_out, verdict_legend
from dashboard.session import Session


def score_cell(arm: pd.Series, verdict: str | None) -> tables.Cell:
    """`87.4 ▲ ±1.6 (500×4)`; an unfinished arm is hatched, shows its done share and has no mark."""
    if arm["rows"] == 0:
        return tables.Cell("no rows yet", "incomplete", f"0 of {theme.count(arm['planned'])} rows")
    mark = theme.verdict_mark(verdict) if arm["complete"] else theme.INCOMPLETE
    text = theme.score(arm["accuracy"], arm["half_width"], arm["problems"], arm["samples"], mark)
    hover = (
        f"95 % interval {theme.percent(arm['low'])} to {theme.percent(arm['high'])}; "
        f"wrong {theme.percent(arm['wrong'])} %, truncated {theme.percent(arm['truncated'])} %, "
        f"no answer {theme.percent(arm['no_answer'])} %, error {theme.percent(arm['error'])} %; cell {arm['cell_id']}"
    )
    if not arm["complete"]:
        done = f"{100 * arm['done']:.0f} % done"
        return tables.Cell(text, "incomplete", hover, links.problems(arm), done)
    return tables.Cell(text, verdict or "", hover, links.problems(arm))


def build(state: Session) -> Content:
    """Table of all arms, then one panel of points with intervals per model and task."""
    arms, verdicts = state.arms, frames.verdicts(state.differences)
    panels = frames.panels(arms)
    rows = []
    for label, mine in frames.by_arm(arms):
        found = {arm["panel"]: score_cell(arm, verdicts.get(arm["cell_id"])) for _, arm in mine.iterrows()}
        first = mine.iloc[0]
        cells = [found.get(panel.key, tables.MISSING) for panel in panels]
        kind = frames.row_kind(mine, state.references)
        rows.append(tables.Row(frames.short_label(label, first), cells, kind, first["rule"]))
    table = Table(
        tables.render("Policy", [(panel.model, panel.task) for panel in panels], rows),
        export(arms, verdicts),
        "accuracy",
        verdict_legend(),
        "Each cell: percent ± half of the 95 % interval (problems × samples); the reference is tinted.",
    )
    domain = base.share_domain(arms.dropna(subset=["low", "high"]))
    drawn = arms[arms["rows"] > 0]
    charts = [
        (f"Accuracy with 95 % intervals: {panel.title}",
         accuracy.dots(drawn[drawn["panel"] == panel.key], state.order, domain, panel.title))
        for panel in frames.panels(drawn)[: state.most_charts]
    ]  # fmt: skip
    caption = "Point = share of correct answers, line = 95 % interval; dashed vertical line = full cache."
    caption += left_out(frames.panels(drawn), state.most_charts)
    question = f"How good is every arm? Marks compare with {state.reference_text}: paired, 95 % interval."
    return Content("Accuracy", question, [table, Charts(charts, caption)])


def export(arms: pd.DataFrame, verdicts: Mapping[str, str]) -> pd.DataFrame:
    """The table as a flat file: raw shares, one line per cell."""
    columns = ["model", "task", "policy", "rule", "budget", "accuracy", "low", "high", "problems", "samples", "wrong",
               "truncated", "no_answer", "error", "rows", "planned", "complete", "cell_id"]  # fmt: skip
    return arms[columns].assign(verdict=[verdicts.get(cell_id, "") for cell_id in arms["cell_id"]])
