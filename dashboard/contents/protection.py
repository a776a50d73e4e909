"""Protection: is it the score, or that the prompt stays?"""

from __future__ import annotations

import pandas as pd

from dashboard import frames, links, tables, theme
from dashboard.charts import protection
from dashboard.contents.base import Block, Charts, Content, Note, Table, left_out, verdict_cell, verdict_legend
from dashboard.session import Session

QUESTION = (
    "Score or protection? The same policy without and with the prompt protected, paired by problem; beyond = what "
    "protection does to it beyond what it does to {reference}."
)
COLUMNS = ["Unprotected, %", "Protected, %", "Change", "95 % interval", "Verdict", "W / L / T", "Prompt kept, %",
           "Beyond reference", "n"]  # fmt: skip
EXPORTED = ["model", "task", "policy", "budget", "bare_protection", "bare_accuracy", "accuracy", "change", "low",
            "high", "verdict", "reason", "wins", "losses", "ties", "bare_prompt_kept", "prompt_kept", "beyond",
            "beyond_low", "beyond_high", "problems", "provisional", "cell_id", "bare_id"]  # fmt: skip


def build(state: Session) -> Content:
    """Dumbbells and prompt shares per model and task, then the numbers."""
    question = QUESTION.format(reference=state.reference)
    table = state.protection
    if table.empty:
        text = (
            "No policy has both a protected and another arm at the same budget here. Add the second rule to the job, "
            "for example policies: [random, {name: random, protection: none}]."
        )
        return Content("Protection", question, [Note(text)])
    table["row"] = [f"{policy} ({rule})" for policy, rule in zip(table["policy"], table["bare_rule"], strict=True)]
    blocks: list[Block] = []
    panels = frames.panels(table)
    for panel in panels[: state.most_charts]:
        mine = frames.of_panel(table, panel)
        order = sorted(set(mine["row"]), key=lambda row: (theme.policy_key(row.split(" (")[0]), row))
        charts = [
            (f"Accuracy without and with protection: {panel.title}", protection.dumbbells(mine, order, panel.title)),
            (f"Share of the prompt kept: {panel.title}", protection.prompt_kept(mine, order, "Measured prompt share")),
        ]
        blocks.append(Charts(charts, "Hollow = without protection, filled = with it."))
    rows = [
        tables.Row(row["policy"], [*where(table, row), *cells(row)], note=f"{row['bare_rule']} → prompt protected")
        for _, row in table.iterrows()
    ]
    heads = [("", name) for name in (*[title for title, _ in _places(table)], *COLUMNS)]
    html = tables.render("Policy", heads, rows)
    note = "Change = protected − unprotected. Beyond: t interval, on the problems complete in all four arms."
    note += left_out(panels, state.most_charts)
    blocks.append(Table(html, table[EXPORTED], "protection", verdict_legend(), note))
    return Content("Protection", question, blocks)


def _places(table: pd.DataFrame) -> list[tuple[str, str]]:
    columns = (("Model · task", "panel_title"), ("Budget", "budget"))
    return [(title, name) for title, name in columns if table[name].nunique() > 1]


def where(table: pd.DataFrame, row: pd.Series) -> list[tables.Cell]:
    """Model, task and budget, where the table has several."""
    return [tables.Cell(row[name], "text") for _, name in _places(table)]


def cells(row: pd.Series) -> list[tables.Cell]:
    """One policy at one budget."""
    complete = not row["provisional"]
    beyond = theme.interval(row["beyond_low"], row["beyond_high"]) if pd.notna(row["beyond"]) else ""
    return [
        tables.Cell(theme.percent(row["bare_accuracy"])),
        tables.Cell(theme.percent(row["accuracy"])),
        tables.Cell(theme.points(row["change"])),
        tables.Cell(theme.interval(row["low"], row["high"])),
        verdict_cell(row["verdict"], row["reason"], complete),
        tables.Cell(f"{row['wins']} / {row['losses']} / {row['ties']}", link=links.problems(row)),
        tables.Cell(f"{theme.percent(row['bare_prompt_kept'])} → {theme.percent(row['prompt_kept'])}"),
        tables.Cell(theme.points(row["beyond"]), note=beyond),
        tables.Cell(theme.count(row["problems"])),
    ]
