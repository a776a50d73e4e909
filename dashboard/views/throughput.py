"""Throughput: how fast is every arm, under stated conditions and never from accuracy runs?"""

from __future__ import annotations

import streamlit as st

from dashboard import data, parts, session, theme
from dashboard.contents import throughput


def main(state: session.Session) -> None:
    """A choice of what speed is compared with, then the page."""
    parts.head("Throughput", throughput.QUESTION)
    policies = sorted(set(data.throughput(state.store, state.stamp).rows["policy"]), key=theme.policy_key)
    if len(policies) > 1:
        st.selectbox("Speed relative to", policies, key="speed", bind="query-params")
    parts.page(throughput.build, state, with_head=False)


main(session.current())
