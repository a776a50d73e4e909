"""Frontier: which arm to serve? Accuracy against what it costs, always of one and the same cell."""

from __future__ import annotations

import pandas as pd

from dashboard import data, frames, links, tables, theme
from dashboard.charts import throughput
from dashboard.contents.base import Block, Charts, Content, Note, Table, arm_rows, left_out
from dashboard.contents.throughput import MISSING
from dashboard.session import Session
from orchestrator.store.throughput import CONDITIONS

QUESTION = (
    "Which to serve? Accuracy against memory and speed. A dot is one cell: its accuracy, its memory and its speed come "
    "from the same policy, parameters and budget."
)
SAME = [name for name in CONDITIONS if name != "model"]
COLUMNS = ["Accuracy, %", "95 % interval", "Peak cached tokens", "Bytes per request", "Shared bytes", "Tokens/s", "n"]
EXPORTED = ["model", "task", "policy", "rule", "budget", "accuracy", "low", "high", "cached_peak", "request_bytes",
            "shared_bytes", "tokens_per_second", "problems", "samples", "complete", "cell_id"]  # fmt: skip


def build(state: Session) -> Content:
    """Per model and task one chart for each cost that was measured, then the numbers."""
    table = costs(state)
    if table.empty:
        return Content("Frontier", QUESTION, [Note("No row in the store for this choice yet.")])
    panels = frames.panels(table)
    blocks: list[Block] = [panel_charts(frames.of_panel(table, panel), panel) for panel in panels[: state.most_charts]]
    if table["tokens_per_second"].isna().all():
        blocks.append(Note(f"{MISSING}. It gives tokens/s and bytes; until then memory is counted in cached tokens."))
    html = arm_rows(table, COLUMNS, [cells(row) for _, row in table.iterrows()], [""] * len(table))
    note = "Bytes: one request's cache at its peak with query rings and tables; shared: what a policy keeps once."
    note += left_out(panels, state.most_charts)
    blocks.append(Table(html, table[EXPORTED], "frontier", note=note))
    return Content("Frontier", QUESTION, blocks)


def costs(state: Session) -> pd.DataFrame:
    """Arms of all budgets with rows, joined with the speed of the same policy, parameters, budget and protection.

    Speed is measured once for all tasks. Of several sets of conditions the one with most rows is taken: they never mix.
    """
    arms = state.all_budgets[state.all_budgets["rows"] > 0]
    rows = data.throughput(state.store, state.stamp).rows.rename(columns={"model": "model_path"})
    sizes = rows.groupby(["model_path", *SAME], dropna=False)["round"].transform("size")
    rows = rows[sizes == sizes.groupby(rows["model_path"]).transform("max")]
    sound = rows[~rows["warm_up"] & (rows["preemptions"] == 0) & (rows["prefix_cache_hit_rate"] == 0)]
    speed = sound.assign(speed=sound["tokens"] / sound["seconds"], key=keys(sound))
    measured = speed.groupby("key", as_index=False).agg(
        tokens_per_second=("speed", "mean"), tokens_per_second_low=("speed", "min"),
        tokens_per_second_high=("speed", "max"), request_bytes=("request_bytes", "max"),
        shared_bytes=("shared_bytes", "max"),
    )  # fmt: skip
    joined = arms.assign(key=keys(arms)).merge(measured.astype({"key": object}), on="key", how="left")
    return joined.drop(columns="key").reset_index(drop=True)


def keys(frame: pd.DataFrame) -> list[str]:
    """What one dot stands for: model, policy, parameters, budget and protection; missing values are alike."""
    columns = frame[["model_path", "policy", "policy_params", "keep", "interval", "protection"]].astype(object)
    known = columns.where(columns.notna(), None).to_dict("split")["data"]
    return [repr([float(v) if isinstance(v, int | float) else v for v in row]) for row in known]


def panel_charts(mine: pd.DataFrame, panel: frames.Panel) -> Charts:
    """Accuracy against peak cached tokens, bytes and speed, as far as they are known."""
    axes = {
        "cached_peak": "peak cached tokens per head",
        "request_bytes": "bytes of one request's cache at its peak",
        "tokens_per_second": "tokens/s, all requests",
    }
    charts = []
    for name, label in axes.items():
        known = mine[mine[name].notna()].astype({name: float})
        if len(known):
            chart = throughput.frontier(known, name, label, f"{panel.title}: {label}")
            charts.append((f"Accuracy against {label}: {panel.title}", chart))
    return Charts(charts, "Up is more accurate; left is less memory, right is faster. Hollow: unfinished.")


def cells(row: pd.Series) -> list[tables.Cell]:
    """One cell's accuracy and costs."""
    kind = "" if row["complete"] else "incomplete"
    return [
        tables.Cell(theme.percent(row["accuracy"]), kind, link=links.accuracy(row)),
        tables.Cell(f"[{theme.percent(row['low'])}, {theme.percent(row['high'])}]"),
        *(tables.Cell(theme.count(row[name])) for name in ("cached_peak", "request_bytes", "shared_bytes")),
        tables.Cell(theme.count(row["tokens_per_second"])),
        tables.Cell(row["n"]),
    ]
