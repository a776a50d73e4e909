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
LOG_LINES = 40
LOG_BYTES = 64 << 10


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
                tables.Cell(row["engines"], "text"),
            ],
        )
        for row in found.to_dict("records")
    ]
    st.html(tables.render("Cell", [("", name) for name in ("chunks", "cause", "reason", "log of")], rows))


def grouped(attempts: list[Mapping[str, Any]]) -> pd.DataFrame:
    """Attempts by cell and reason, most chunks first: cell, cause, reason, chunks, engines."""
    lines = [
        {
            "cell": str(one.get("cell_label") or one.get("cell_id", "?")),
            "cause": str(one.get("cause", "")),
            "reason": str(one.get("reason", "unknown")),
            "chunk": (one.get("sample"), one.get("block")),
            "engine": str(one.get("engine_id") or "–"),
        }
        for one in attempts
    ]
    frame = pd.DataFrame(lines, columns=["cell", "cause", "reason", "chunk", "engine"])
    kinds = frame.groupby(["cell", "cause", "reason"])
    counts = kinds.agg(chunks=("chunk", "nunique"), engines=("engine", lambda ids: ", ".join(sorted(set(ids)))))
    return counts.reset_index().sort_values("chunks", ascending=False, kind="stable")


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


def logs(store: Path) -> None:
    """The end of what one engine printed; nothing before an engine was started."""
    found = data.logs(store)
    if not found:
        return
    with st.expander("Engine logs", icon=":material/terminal:"):
        name = str(st.selectbox("Engine", list(found), key="log", bind="query-params"))
        lines = tail(found[name]) if name in found else []
        st.code("\n".join(lines) or "Nothing printed yet.", language=None, height=320)
        st.caption(f"Last {LOG_LINES} lines of {found[name].relative_to(store)}; all of them: evictbench logs JOB")


def tail(path: Path) -> list[str]:
    """The last LOG_LINES lines of a file, from its last LOG_BYTES; none where it has gone."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_BYTES))
            return log.read().decode("utf-8", "replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []


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
    columns[0].metric(
        f"Tokens/s, last {minutes:.0f} min of rows", theme.count(tokens), border=True,
        chart_data=per_second(table), chart_type="area",
    )  # fmt: skip
    columns[1].metric("Rows left", theme.count(left), border=True)
    columns[2].metric("Time left", remaining(left, int(table["rows"].sum()), minutes * 60), border=True)


def per_second(table: pd.DataFrame) -> list[float]:
    """Tokens/s of every minute between the first and the last row; a minute without rows is a zero, not a gap."""
    minutes = table.set_index("minute")["tokens"].astype(float)
    whole = pd.date_range(minutes.index.min(), minutes.index.max(), freq="min")
    return [value / 60 for value in minutes.reindex(whole, fill_value=0.0)]


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
