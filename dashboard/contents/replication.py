"""Replication: do the published numbers come out again?"""

from __future__ import annotations

import pandas as pd

from dashboard import data, tables
from dashboard.charts import replication
from dashboard.contents.base import Block, Charts, Content, Note, Table
from dashboard.session import Session
from orchestrator.replication.published import named

QUESTION = (
    "Do the published numbers come out again? Consistent = the published value lies in the interval of a repetition, "
    "its own noise included. Other model ids are never compared: they are not run."
)
COLUMNS = ["Published", "Here", "95 % interval", "Repetition", "Status", "n"]
PAPER = "random-attention"
ALL = "All"
# Numbers on one page of the table.
SHOWN = 100
# One chart of more lines than this cannot be read.
CHARTED = 60
EXPORTED = ["number", "table", "model", "task", "policy", "keep", "metric", "published", "status", "reason", "estimate",
            "low", "high", "predicted_low", "predicted_high", "problems", "samples", "third_party", "source",
            "cell_id"]  # fmt: skip


def build(state: Session, where: str = ALL, status: str = ALL, page: int = 1) -> Content:
    """Counts over all numbers of the paper, then a chart and a table of one page of the chosen ones."""
    table = data.replication(state.store, state.stamp, PAPER)
    return content(table, chosen(table, where, status).iloc[SHOWN * (page - 1) : SHOWN * page])


def settled(state: Session) -> Content:
    """For a bundle: every number that can be compared; those that were not run are counted."""
    table = data.replication(state.store, state.stamp, PAPER)
    return content(table, chosen(table).query("status != 'not run'"))


def chosen(table: pd.DataFrame, where: str = ALL, status: str = ALL) -> pd.DataFrame:
    """Rows of one published table and status, those with a result first."""
    part = table[((table["table"] == where) | (where == ALL)) & ((table["status"] == status) | (status == ALL))]
    order = part["status"].map({name: place for place, name in enumerate(replication.STATUSES)})
    return part.loc[order.sort_values(kind="stable").index]


def content(table: pd.DataFrame, chosen: pd.DataFrame) -> Content:
    """Counts over all numbers of the paper, then a chart and a table of the chosen ones."""
    counts = table["status"].value_counts()
    marks = replication.STATUSES
    summary = ", ".join(f"{counts.get(name, 0):,} {name}" for name in marks)
    blocks: list[Block] = [Note(f"{named(PAPER).title}: {len(table):,} published numbers, {summary}.")]
    run = chosen[chosen["estimate"].notna() & chosen["value"].notna()]
    if len(run):
        charted = run.head(CHARTED)
        chart = replication.whiskers(charted.assign(number=[label(row) for _, row in charted.iterrows()]))
        caption = "Tick = published, point = this store, whisker = where a repetition of the publication would fall."
        blocks.append(Charts([("Published and measured values", chart)], caption))
    if counts.get("not run", 0) == len(table):
        blocks.append(Note(f"None of them was run here. What it takes: evictbench replicate --paper {PAPER}"))
    if chosen.empty:
        return Content("Replication", QUESTION, blocks)
    rows = [tables.Row(label(row), cells(row), note=str(row["reason"] or "")) for _, row in chosen.iterrows()]
    html = tables.render("Published number", [("", name) for name in COLUMNS], rows)
    legend = [(mark.glyph, mark.text) for mark in marks.values()]
    blocks.append(Table(html, chosen[EXPORTED], "replication", legend))
    return Content("Replication", QUESTION, blocks)


def label(row: pd.Series) -> str:
    """`table 1: Qwen3-4B, AIME, SnapKV, keep 2048, accuracy` as far as the publication says."""
    keep = f"keep {row['keep']}" if pd.notna(row["keep"]) else row["compression"]
    parts = [row["model"], row["task"], row["policy"], keep, row["metric"]]
    return f"{row['table']}: {', '.join(str(part) for part in parts if pd.notna(part) and part)}"


def cells(row: pd.Series) -> list[tables.Cell]:
    """One published number beside the estimate."""
    mark = replication.STATUSES[str(row["status"])]
    n = f"{row['problems']:,}×{row['samples']}" if pd.notna(row["problems"]) else "–"
    kind = {"deviates": "text worse", "not run": "text missing"}.get(str(row["status"]), "text")
    return [
        tables.Cell(str(row["published"])),
        tables.Cell(number(row["estimate"])),
        tables.Cell(span(row["low"], row["high"])),
        tables.Cell(span(row["predicted_low"], row["predicted_high"])),
        tables.Cell(f"{mark.glyph} {mark.text}", kind),
        tables.Cell(n),
    ]


def number(value: float) -> str:
    """Four digits in the number's own unit; an en dash where there is none."""
    return "–" if pd.isna(value) else f"{value:,.4g}"


def span(low: float, high: float) -> str:
    """`[0.93, 0.97]`."""
    return "–" if pd.isna(low) or pd.isna(high) else f"[{number(low)}, {number(high)}]"
