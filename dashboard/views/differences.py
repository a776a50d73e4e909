"""Differences: which arm is better or worse than the reference?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import frames, parts, session, tables, theme
from dashboard.charts import base, forest


def p_value(value: float | None) -> str:
    """Two digits; an en dash where the comparison is in no family or has no test."""
    return "–" if value is None or pd.isna(value) else f"{value:.2g}"


def difference_cells(row: pd.Series) -> list[tables.Cell]:
    """Columns of one comparison; an unfinished one is hatched and has no verdict."""
    if not row["complete"]:
        verdict = tables.Cell(f"{theme.INCOMPLETE} {row['done']}", "text incomplete", "Unfinished: no verdict yet")
    else:
        mark = theme.VERDICTS[row["verdict"]]
        verdict = tables.Cell(f"{mark.glyph} {mark.text}", f"text {row['verdict']}", note=row["reason"])
    return [
        verdict,
        tables.Cell(theme.points(row["difference"])),
        tables.Cell(theme.interval(row["low"], row["high"])),
        tables.Cell(row["counts"], link=parts.problems_link(row, discordant=True)),
        tables.Cell(p_value(row["p_sign"])),
        tables.Cell(p_value(row["p_holm"]), hover=f"Sign-flip p, corrected over {row['family_size']} comparisons"),
        tables.Cell(row["n"]),
    ]


COLUMNS = ["Verdict", "Points", "95 % interval", "W / L / T", "Sign p", "Holm p", "n"]


def main(state: session.Session) -> None:
    """Forest plot per model and task over one axis, then the table with every number."""
    st.title("Differences")
    st.caption(f"Who beats the reference? Paired by problem against {state.reference_text}.")
    table = state.differences
    contest = table[table["policy"] != "full"]
    if contest.empty:
        st.info(frames.no_comparison(state.arms, state.reference), icon=":material/info:")
        return
    domain = base.difference_domain(contest)
    panels = frames.panels(contest)
    order = [arm for arm in state.order if arm in set(contest["arm"])]
    for column, panel in parts.grid(panels):
        chart = forest.forest(contest[contest["panel"] == panel.key], order, domain, panel.title)
        column.altair_chart(chart, theme=None, width="stretch", alt=f"Differences to the reference: {panel.title}")
    st.caption("Right of zero = better than the reference. Beside each line: verdict, problems won / lost / tied.")

    kinds = ["full" if policy == "full" else "" for policy in table["policy"]]
    parts.arm_table(table, COLUMNS, [difference_cells(row) for _, row in table.iterrows()], kinds)
    parts.legend(
        "W / L / T: problems won, lost, tied. The interval decides. Beside it: the exact sign test, and the sign-flip "
        "test with Holm's correction over all contenders of the model."
    )
    parts.downloads(frames.difference_export(table), "differences")


main(session.current())
