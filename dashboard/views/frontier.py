"""Frontier: which arm to serve? Accuracy against what it costs, always of one and the same cell."""

from __future__ import annotations

from dashboard import parts, session
from dashboard.contents import frontier

parts.page(frontier.build, session.current())
