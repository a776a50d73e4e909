"""Overview: what is settled?"""

from __future__ import annotations

import pandas as pd

from dashboard import frames, tables, theme
from dashboard.contents.base import Block, Content, Note, Table, verdict_legend
from dashboard.contents.differences import export
from dashboard.session import Session

COUNTERS = ("worse", "unresolved", "better")


def counters(contest: pd.DataFrame) -> list[tuple[str, int]]:
    """Label and number of arms per verdict; unfinished ones are counted apart, equivalent ones where there are any."""
    counts = frames.verdict_counts(contest)
    shown = [*COUNTERS, *(["equivalent"] if counts["equivalent"] else [])]
    marks = [(f"{theme.VERDICTS[name].glyph} {theme.VERDICTS[name].text}", counts[name]) for name in shown]
    return [*marks, (f"{theme.INCOMPLETE} unfinished", counts["unfinished"])]


def question(state: Session) -> str:
    """What the page answers."""
    return f"What is settled against {state.reference_text}? Difference of accuracy in points, paired by problem."


def build(state: Session) -> Content:
    """Counters as a sentence, and the grid of verdicts."""
    table = state.differences
    contest = table[table["policy"] != "full"]
    if contest.empty:
        blocks: list[Block] = [Note(frames.no_comparison(state.arms, state.reference))]
    else:
        blocks = [Note(", ".join(f"{number} {label}" for label, number in counters(contest))), grid(state, table)]
    return Content("Overview", question(state), blocks)


def verdicts(state: Session) -> Content:
    """The grid of verdicts alone."""
    return Content("Overview", question(state), [grid(state, state.differences)])


def grid(state: Session, table: pd.DataFrame) -> Table:
    """Arms x (model, task): the verdict mark and the difference in each cell; references say that they are."""
    panels = frames.panels(state.arms)
    compared = {row["cell_id"]: difference_cell(row) for _, row in table.iterrows()}
    rows = []
    for label, mine in frames.by_arm(state.arms):
        first = mine.iloc[0]
        ids = dict(zip(mine["panel"], mine["cell_id"], strict=True))
        reference = tables.Cell("reference") if first["policy"] == state.reference else tables.MISSING
        cells = [compared.get(ids.get(panel.key, ""), reference) for panel in panels]
        kind = frames.row_kind(mine, state.references)
        rows.append(tables.Row(frames.short_label(label, first), cells, kind, first["rule"]))
    html = tables.render("Policy", [(panel.model, panel.task) for panel in panels], rows)
    return Table(html, export(table), "overview", verdict_legend(), "Each cell: difference in points.")


def difference_cell(row: pd.Series) -> tables.Cell:
    """`▼ −96.2` with the sizes behind it, hatched while unfinished."""
    if not row["complete"]:
        return tables.Cell(f"{theme.INCOMPLETE} {row['done']}", "incomplete", "Unfinished: no verdict yet")
    text = f"{theme.verdict_mark(row['verdict'])} {theme.points(row['difference'])} ({row['n']})"
    hover = f"95 % interval {theme.interval(row['low'], row['high'])}; wins / losses / ties {row['counts']}; {row['n']}"
    return tables.Cell(text, row["verdict"], f"{hover} {row['reason']}".strip(), "differences")
