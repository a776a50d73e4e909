"""Replication: do the published numbers come out again?"""

from __future__ import annotations

import streamlit as st

from dashboard import data, parts, session
from dashboard.charts.replication import STATUSES
from dashboard.contents import replication


def main(state: session.Session) -> None:
    """Choices of the published table and of what came out, then the page."""
    parts.head("Replication", replication.QUESTION)
    table = data.replication(state.store, state.stamp, replication.PAPER)
    left, right = st.columns(2)
    where = left.selectbox("Published table", [replication.ALL, *table["table"].unique()], key="table",
                           bind="query-params")  # fmt: skip
    status = right.selectbox("Status", [replication.ALL, *STATUSES], key="status", bind="query-params")
    pages = max(1, -(-len(replication.chosen(table, where, status)) // replication.SHOWN))
    page = st.number_input(f"Page (1 to {pages})", 1, pages, 1, key="page", bind="query-params") if pages > 1 else 1
    parts.page(replication.build, state, where, status, page, with_head=False)


main(session.current())
