"""Lengths: does an arm think longer, and did eviction happen at all?"""

from __future__ import annotations

import pandas as pd

from dashboard import data, frames, links, tables, theme
from dashboard.charts import lengths
from dashboard.contents.base import Charts, Content, Note, Table, arm_rows, left_out
from dashboard.session import Session

COLUMNS = ["Median tokens", "10–90 %", "Longer by, tokens", "95 % interval", "Problems", "Truncated, %",
           "Never evicted, %", "Compression", "Rows"]  # fmt: skip
EXPORTED = ["model", "task", "policy", "rule", "budget", "rows", "q10", "q25", "median", "q75", "q90", "longer",
            "longer_low", "longer_high", "paired_problems", "truncated", "never_evicted", "compression", "cell_id",
            "reference_id"]  # fmt: skip


def cells(row: pd.Series) -> list[tables.Cell]:
    """One arm's lengths as table cells; compression = whole length / mean cached tokens per head."""
    evicts, compared = pd.notna(row["compression"]), pd.notna(row["longer_low"])
    return [
        tables.Cell(theme.count(row["median"])),
        tables.Cell(f"{theme.count(row['q10'])}–{theme.count(row['q90'])}"),
        tables.Cell(theme.signed(row["longer"])),
        tables.Cell(f"[{theme.signed(row['longer_low'])}, {theme.signed(row['longer_high'])}]" if compared else "–"),
        tables.Cell(theme.count(row["paired_problems"]), link=links.problems(row) if compared else ""),
        tables.Cell(theme.percent(row["truncated"])),
        tables.Cell(theme.percent(row["never_evicted"]) if evicts else "–"),
        tables.Cell(f"{row['compression']:.1f}×" if evicts else "–"),
        tables.Cell(theme.count(row["rows"])),
    ]


def build(state: Session) -> Content:
    """Panels of length quantiles over a common axis, then the numbers."""
    question = "Does an arm think longer? Rows that never evict dilute every comparison, so their share is shown."
    table = frames.joined(data.lengths(state.store, state.stamp, tuple(state.arms["cell_id"])), state.arms)
    table = table.merge(state.longer, on="cell_id", how="left")
    if table.empty:
        return Content("Lengths", question, [Note("No row in the store for this choice yet.")])
    charts = [
        (f"Generated tokens per arm: {panel.title}",
         lengths.quantiles(table[table["panel"] == panel.key], state.order, table["q90"].max(), panel.title))
        for panel in frames.panels(table)[: state.most_charts]
    ]  # fmt: skip
    kinds = ["full" if p == "full" else "reference" if c in state.references else ""
             for p, c in zip(table["policy"], table["cell_id"], strict=True)]  # fmt: skip
    html = arm_rows(table, COLUMNS, [cells(row) for _, row in table.iterrows()], kinds)
    caption = "Point = median, thick line = middle half, thin line = 10 to 90 %."
    caption += left_out(frames.panels(table), state.most_charts)
    note = (
        f"Longer by: mean difference per answer to {state.reference_text}, paired by problem, t interval. Truncated "
        "answers count with their limit. Compression: whole trace / mean cached tokens per head."
    )
    return Content("Lengths", question, [Charts(charts, caption), Table(html, table[EXPORTED], "lengths", note=note)])
