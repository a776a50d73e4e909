"""Compression: how does every arm decay as keep shrinks?"""

from __future__ import annotations

import pandas as pd

from dashboard import frames, links, tables, theme
from dashboard.charts import compression
from dashboard.contents.base import (
    Block,
    Charts,
    Content,
    Heading,
    Note,
    Table,
    arm_rows,
    left_out,
    verdict_cell,
    verdict_legend,
)
from dashboard.session import Session

QUESTION = "How does it decay? Every arm at every keep that was run; differences are paired against {reference}."
COLUMNS = ["Accuracy, %", "Compression", "Difference", "95 % interval", "Verdict", "W / L / T", "To full cache", "n"]
EXPORTED = ["model", "task", "policy", "rule", "budget", "keep", "interval", "compression", "accuracy", "low", "high",
            "difference", "difference_low", "difference_high", "verdict", "wins", "losses", "ties", "full_difference",
            "full_low", "full_high", "problems", "samples", "complete", "cell_id"]  # fmt: skip


def build(state: Session) -> Content:
    """Per model and task: curves, the paired differences below them; then all numbers."""
    question = QUESTION.format(reference=state.reference_text)
    table = state.sweep
    if table.empty:
        text = "No arm that evicts has rows yet. Write several values in arms.keep of a job and run it."
        return Content("Compression", question, [Note(text)])
    blocks: list[Block] = []
    panels = frames.panels(table)
    for panel in panels[: state.most_charts]:
        blocks += panel_blocks(state, panel, frames.of_panel(table, panel))
    html = arm_rows(table, COLUMNS, [cells(row) for _, row in table.iterrows()], [""] * len(table))
    note = "Compression: mean trace of the full cache / keep. A point differs by its own paired interval."
    note += left_out(panels, state.most_charts)
    blocks += [Heading("All points"), Table(html, table[EXPORTED], "compression", verdict_legend(), note)]
    return Content("Compression", question, blocks)


def panel_blocks(state: Session, panel: frames.Panel, mine: pd.DataFrame) -> list[Block]:
    """Curves and differences of one model and task; with a single keep there is no curve to draw."""
    if mine["keep"].nunique() < 2:
        keeps = ", ".join(f"{keep:.0f}" for keep in sorted(mine["keep"].unique()))
        return [Note(f"{panel.title}: one keep only ({keeps}), so there is no curve. Add more to arms.keep.")]
    drawn = mine[mine["accuracy"].notna()]
    reference = frames.reference_arm(drawn, state.reference)
    full = frames.of_panel(state.all_budgets, panel).query("policy == 'full'")["accuracy"].dropna()
    bound = float(full.iloc[0]) if len(full) else None
    upper = compression.curves(drawn, reference, bound, panel.title)
    blocks: list[Block] = [
        Charts([(f"Accuracy over compression: {panel.title}", upper)],
               "Thick line with its 95 % band: the reference. Dashed horizontal line: full cache. Hollow: unfinished.")
    ]  # fmt: skip
    if drawn["difference"].notna().any():
        lower = compression.differences(drawn, "Paired difference to the reference at the same keep")
        blocks.append(
            Charts([(f"Differences over keep: {panel.title}", lower)], "Above zero = better than the reference.")
        )
    return blocks


def cells(row: pd.Series) -> list[tables.Cell]:
    """One point of a curve."""
    kind = "" if row["complete"] else "incomplete"
    compared = pd.notna(row["difference"])
    verdict = verdict_cell(row["verdict"], "", row["complete"]) if compared else tables.Cell("reference", "text")
    return [
        tables.Cell(theme.percent(row["accuracy"]), kind, link=links.accuracy(row)),
        tables.Cell("–" if pd.isna(row["compression"]) else f"{row['compression']:.1f}×"),
        tables.Cell(theme.points(row["difference"])),
        tables.Cell(theme.interval(row["difference_low"], row["difference_high"])),
        verdict,
        tables.Cell(f"{row['wins']} / {row['losses']} / {row['ties']}" if compared else "–"),
        tables.Cell(theme.points(row["full_difference"])),
        tables.Cell(row["n"]),
    ]
