"""Replication: do the published numbers come out again?"""

from __future__ import annotations

import streamlit as st

from dashboard import data, parts, session
from dashboard.charts.replication import STATUSES
from dashboard.contents import replication
from orchestrator.replication.published import named

PAPER = "random-attention"
SHOWN = 100


def main(state: session.Session) -> None:
    """Choices of the published table and of what came out, then the page."""
    parts.head("Replication", replication.QUESTION)
    table = data.replication(state.store, state.stamp, PAPER)
    left, right = st.columns(2)
    where = left.selectbox("Published table", ["All", *table["table"].unique()], key="table", bind="query-params")
    status = right.selectbox("Status", ["All", *STATUSES], key="status", bind="query-params")
    chosen = table[(table["table"] == where) | (where == "All")]
    chosen = chosen[(chosen["status"] == status) | (status == "All")]
    order = chosen["status"].map({name: place for place, name in enumerate(STATUSES)})
    chosen = chosen.loc[order.sort_values(kind="stable").index]
    pages = max(1, -(-len(chosen) // SHOWN))
    page = st.number_input(f"Page (1 to {pages})", 1, pages, 1, key="page", bind="query-params") if pages > 1 else 1
    shown = chosen.iloc[SHOWN * (page - 1) : SHOWN * page]
    parts.show(replication.build(table, named(PAPER).title, shown), with_head=False)


main(session.current())
