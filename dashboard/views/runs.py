"""Runs: can I trust it?"""

from __future__ import annotations

import pandas as pd
import streamlit as st

from dashboard import data, parts, session, tables, theme

ROW_COLUMNS = ["cell_id", "cell_label", "planned", "rows", "graded", "invalid", "complete"]


def counts_row(row: pd.Series) -> tables.Row:
    """Expected against found rows and grades of one cell; hatched while something is missing."""
    kind = "" if row["complete"] else "incomplete"
    cells = [
        tables.Cell(row["cell_id"], "text"),
        tables.Cell(f"{theme.count(row['rows'])} of {theme.count(row['planned'])}", kind),
        tables.Cell(theme.count(row["graded"])),
        tables.Cell(theme.count(row["invalid"]), "worse" if row["invalid"] else ""),
    ]
    return tables.Row(row["cell_label"], cells)


def difference(state: session.Session) -> None:
    """What two cells do not share: identity, engines, versions."""
    labels = dict(zip(state.all_budgets["cell_id"], state.all_budgets["cell_label"], strict=True))
    if len(labels) < 2:
        return
    st.subheader("Two cells")
    ids, columns = list(labels), st.columns(2)
    chosen = [
        column.selectbox(name, ids, index=place, format_func=labels.__getitem__, key=name.lower(), bind="query-params")
        for place, (column, name) in enumerate(zip(columns, ("Cell", "Other cell"), strict=True))
    ]
    facts = [data.cell_facts(state.store, state.stamp, str(cell_id)) for cell_id in chosen]
    names = [name for name in facts[0] if facts[0][name] != facts[1][name] and name != "cell_label"]
    if not names:
        st.caption("They are one and the same.")
        return
    rows = [tables.Row(name, [tables.Cell(one[name], "text wrap") for one in facts]) for name in names]
    st.html(tables.render("Differs in", [("", one["cell_label"]) for one in facts], rows))
    st.caption(f"They share {len(facts[0]) - len(names):,} other facts.")


def main(state: session.Session) -> None:
    """Unreadable files first, then row counts, provenance of the rows, and the job as submitted."""
    st.title("Runs")
    st.caption("Can I trust it? Rows expected and found, what made them, and the job file as it was submitted.")
    corrupt = data.corrupt(state.store, state.stamp)
    for problem in corrupt:
        st.error(problem, icon=":material/broken_image:")
    st.subheader("Rows")
    counts = data.arms(state.store, state.stamp)
    st.html(tables.render("Cell", [("", name) for name in ("id", "rows", "graded", "invalid")],
                          [counts_row(row) for _, row in counts.iterrows()]))  # fmt: skip
    parts.downloads(counts[ROW_COLUMNS], "rows")
    difference(state)
    st.subheader("What made them")
    made = data.provenance(state.store, state.stamp)
    if made.empty:
        st.caption("No row yet.")
    else:
        st.dataframe(made, hide_index=True, width="stretch")
        st.caption("Package versions of the engines, one line per distinct set.")
        st.dataframe(pd.DataFrame(data.versions(state.store, state.stamp)), hide_index=True, width="stretch")
    st.subheader("Jobs")
    found = data.campaigns(state.store, state.stamp)
    for name in found["name"]:
        job = data.job_file(state.store, name)
        with st.expander(name, expanded=len(found) == 1):
            st.code(job or "The job file is not on record.", language="yaml", wrap_lines=True)
            if job:
                st.download_button("Job file", job, f"{name}.yaml", "application/yaml", key=f"job-{name}",
                                   icon=":material/download:", on_click="ignore")  # fmt: skip


main(session.current())
