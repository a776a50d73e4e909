"""Retention: what survives in the cache?"""

from __future__ import annotations

from dashboard import parts, session
from dashboard.contents import retention


def main(state: session.Session) -> None:
    """A choice of model and task, then the page."""
    parts.head("Retention", retention.QUESTION)
    parts.page(retention.build, state, parts.choose_panel(state), with_head=False)


main(session.current())
