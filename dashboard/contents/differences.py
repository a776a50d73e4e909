"""Differences: which arm is better or worse than the reference?"""

from __future__ import annotations

import pandas as pd

from dashboard import frames, links, tables, theme
from dashboard.charts import base, forest
from dashboard.contents.base import Charts, Content, Note, Table, arm_rows, left_out, verdict_cell, verdict_legend
from dashboard.session import Session

COLUMNS = ["Verdict", "Points", "95 % interval", "W / L / T", "Sign p", "Holm p", "n"]


def cells(row: pd.Series) -> list[tables.Cell]:
    """Columns of one comparison; an unfinished one is hatched and has no verdict."""
    return [
        verdict_cell(row["verdict"], row["reason"], row["complete"], row["done"]),
        tables.Cell(theme.points(row["difference"])),
        tables.Cell(theme.interval(row["low"], row["high"])),
        tables.Cell(row["counts"], link=links.problems(row, discordant=True)),
        tables.Cell(theme.p_value(row["p_sign"])),
        tables.Cell(
            theme.p_value(row["p_holm"]), hover=f"Sign-flip p, corrected over {row['family_size']} comparisons"
        ),
        tables.Cell(row["n"]),
    ]


def build(state: Session) -> Content:
    """Forest plot per model and task over one axis, then the table with every number."""
    question = f"Who beats the reference? Paired by problem against {state.reference_text}."
    table = state.differences
    contest = table[table["policy"] != "full"]
    if contest.empty:
        return Content("Differences", question, [Note(frames.no_comparison(state.arms, state.reference))])
    domain = base.difference_domain(contest)
    order = [arm for arm in state.order if arm in set(contest["arm"])]
    charts = [
        (f"Differences to the reference: {panel.title}",
         forest.forest(contest[contest["panel"] == panel.key], order, domain, panel.title))
        for panel in frames.panels(contest)[: state.most_charts]
    ]  # fmt: skip
    kinds = ["full" if policy == "full" else "" for policy in table["policy"]]
    html = arm_rows(table, COLUMNS, [cells(row) for _, row in table.iterrows()], kinds)
    note = (
        "W / L / T: problems won, lost, tied. The interval decides. Beside it: the exact sign test, and the sign-flip "
        f"test with Holm's correction over the declared family (all contenders of a {state.family})."
    )
    caption = "Right of zero = better than the reference. Beside each line: verdict, problems won / lost / tied."
    caption += left_out(frames.panels(contest), state.most_charts)
    return Content(
        "Differences", question,
        [Charts(charts, caption), Table(html, export(table), "differences", verdict_legend(), note)],
    )  # fmt: skip


def export(table: pd.DataFrame) -> pd.DataFrame:
    """The table as a flat file; verdicts of unfinished comparisons are left out."""
    columns = ["model", "task", "policy", "rule", "at_budget", "reference", "difference", "low", "high", "verdict",
               "reason", "wins", "losses", "ties", "p_sign", "p_holm", "family_size", "problems", "samples",
               "complete", "cell_id"]  # fmt: skip
    return table[columns].assign(verdict=table["verdict"].where(table["complete"], ""))
