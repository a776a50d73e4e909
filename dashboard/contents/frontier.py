"""Frontier: which arm to serve? Accuracy against what it costs, always of one and the same cell."""

from __future__ import annotations

import pandas as pd

from dashboard import data, frames, links, tables, theme
from dashboard.charts import throughput
from dashboard.contents.base import Block, Charts, Content, Heading, Note, Table, arm_rows, left_out
from dashboard.contents.throughput import MISSING
from dashboard.session import Session
from orchestrator.store.throughput import CONDITIONS

QUESTION = (
    "Which to serve? Accuracy against memory and speed. A dot is one cell: its accuracy, its memory and its speed come "
    "from the same policy, parameters and budget."
)
EQUAL_COLUMNS = ["Keep", "Memory", "Accuracy, %", "95 % interval", "Tokens/s", "n"]
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
    blocks += equal_memory(state, table)
    return Content("Frontier", QUESTION, blocks)


def equal_memory(state: Session, table: pd.DataFrame) -> list[Block]:
    """Per model and task: of every policy the largest budget that fits into the memory of the reference arm."""
    found = [
        part for _, part in table.groupby("panel", sort=False) for part in [fitting(part, state.arms, state.reference)]
    ]
    shown = pd.concat(found) if found else table.iloc[:0]
    if shown.empty:
        return []
    html = arm_rows(shown, EQUAL_COLUMNS, [equal_cells(row) for _, row in shown.iterrows()],
                    ["reference" if one else "" for one in shown["is_reference"]])  # fmt: skip
    note = (
        f"Of every policy the largest budget whose memory is at most that of {state.reference} (tinted) at the budget "
        "chosen in the sidebar: bytes with rings, tables and what is kept once, where they were measured, else peak "
        "cached tokens. A policy that does not fit needs a smaller keep. Budgets differ, so nothing here is paired."
    )
    return [Heading("At equal memory"), Table(html, shown[[*EXPORTED, "memory", "limit"]], "equal-memory", note=note)]


def fitting(part: pd.DataFrame, arms: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Rows of one panel that stand for their policy within the reference's memory, with memory, limit, fits."""
    chosen = part[part["cell_id"].isin(arms["cell_id"])]
    base = frames.reference_arm(chosen, reference)
    measured = part["request_bytes"].notna().any()
    memory = (part["request_bytes"] + part["shared_bytes"].fillna(0) if measured else part["cached_peak"]).astype(float)
    mine = part.assign(memory=memory).dropna(subset=["memory"])
    limit = mine.loc[(mine["arm"] == base) & mine["cell_id"].isin(arms["cell_id"]), "memory"]
    if limit.empty:
        return mine.iloc[:0].assign(limit=0.0, fits=True, is_reference=False)
    mine = mine.assign(limit=float(limit.iloc[0]), fits=mine["memory"] <= float(limit.iloc[0]))
    # Of budgets that fit the largest, of those that do not the smallest: the one that is nearest.
    nearest = mine.assign(far=(mine["memory"] - mine["limit"]).abs()).sort_values(
        ["fits", "far"], ascending=[False, True]
    )
    kept = nearest.drop_duplicates(["policy", "rule", "policy_params"]).drop(columns="far").sort_index()
    return kept.assign(is_reference=(kept["arm"] == base) & (kept["memory"] == kept["limit"]))


def equal_cells(row: pd.Series) -> list[tables.Cell]:
    """One policy at the reference's memory; hatched where even its smallest budget needs more."""
    share = f"{100 * row['memory'] / row['limit']:.0f} %"
    return [
        tables.Cell(f"{theme.count(row['keep'])}" if pd.notna(row["keep"]) else "all"),
        tables.Cell(share, "" if row["fits"] else "incomplete", "" if row["fits"] else "does not fit"),
        tables.Cell(theme.percent(row["accuracy"]) if row["fits"] else "does not fit", link=links.accuracy(row)),
        tables.Cell(f"[{theme.percent(row['low'])}, {theme.percent(row['high'])}]" if row["fits"] else "–"),
        tables.Cell(theme.count(row["tokens_per_second"])),
        tables.Cell(row["n"]),
    ]


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
