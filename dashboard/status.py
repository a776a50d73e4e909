"""What runs on a store and what went wrong: read from its small files, so it works before the first row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import data, tables, theme

EVERY_SECONDS = 5
PACE_MINUTES = 30


def failures(store: Path) -> None:
    """Attempts that ended without a commit, equal reasons of a cell on one line; nothing when there are none."""
    found = grouped(data.failures(store))
    if found.empty:
        return
    st.subheader("Failures")
    rows = [
        tables.Row(
            row["cell"],
            [
                tables.Cell(theme.count(row["chunks"])),
                tables.Cell(row["cause"], "text"),
                tables.Cell(row["reason"], "text wrap"),
            ],
        )
        for row in found.to_dict("records")
    ]
    st.html(tables.render("Cell", [("", name) for name in ("chunks", "cause", "reason")], rows))


def grouped(attempts: list[Mapping[str, Any]]) -> pd.DataFrame:
    """Attempts by cell and reason, most chunks first: cell, cause, reason, chunks."""
    lines = [
        {
            "cell": str(one.get("cell_label") or one.get("cell_id", "?")),
            "cause": str(one.get("cause", "")),
            "reason": str(one.get("reason", "unknown")),
            "chunk": (one.get("sample"), one.get("block")),
        }
        for one in attempts
    ]
    frame = pd.DataFrame(lines, columns=["cell", "cause", "reason", "chunk"])
    counts = frame.groupby(["cell", "cause", "reason"]).agg(chunks=("chunk", "nunique")).reset_index()
    return counts.sort_values("chunks", ascending=False, kind="stable")


def engines(store: Path) -> None:
    """Every engine with its last heartbeat, or how to start one."""
    st.subheader("Engines")
    found = data.engines(store)
    if found:
        columns = ["state", "heartbeat", "running", "waiting", "finished", "tokens"]
        st.html(tables.render("Engine", [("", name) for name in columns], [engine_row(one) for one in found]))
    else:
        text = "No engine is running on this store. Start or resume a job with: evictbench run JOB"
        st.info(text, icon=":material/info:")


def engine_row(engine: Mapping[str, Any]) -> tables.Row:
    """One engine's last heartbeat; hatched when it is older than three refreshes."""
    age = data.seconds_since(engine.get("updated_at"))
    late = age is None or age > 3 * EVERY_SECONDS
    cells = [
        tables.Cell(str(engine.get("state", "–")), "text"),
        tables.Cell("never" if age is None else f"{theme.duration(age)} ago", "incomplete" if late else ""),
    ]
    for name in ("running", "waiting", "finished", "generated_tokens"):
        value = engine.get(name)
        cells.append(tables.Cell(theme.count(value) if isinstance(value, int | float) else "–"))
    return tables.Row(str(engine.get("engine_id", "?")), cells, note=str(engine.get("detail", "")))


def pace(store: Path, left: int) -> None:
    """Tokens per second, rows that are left, and when they may be done; nothing before rows arrive."""
    table = data.pace(store, data.stamp(store), PACE_MINUTES)
    if table.empty or not left:
        return
    minutes = 1 + (table["minute"].max() - table["minute"].min()).total_seconds() / 60
    tokens = float(table["tokens"].sum()) / (60 * minutes)
    columns = st.columns(3)
    columns[0].metric(f"Tokens/s, last {minutes:.0f} min of rows", theme.count(tokens), border=True)
    columns[1].metric("Rows left", theme.count(left), border=True)
    columns[2].metric("Time left", remaining(left, int(table["rows"].sum()), minutes * 60), border=True)


def remaining(left: int, done: int, seconds: float) -> str:
    """`4 min to 7 min`: 95 % range of the time for `left` rows at the rate of `done` rows in `seconds`.

    Rows arrive as counts do, so their rate is known to about 2 / sqrt(done) of itself; it holds while the same engines
    run on rows of the same length.
    """
    spread = 1.96 * math.sqrt(done)
    if done <= spread:
        return "unknown yet"
    soonest, latest = (left * seconds / rate for rate in (done + spread, done - spread))
    return f"{theme.duration(soonest)} to {theme.duration(latest)}"
