"""Lengths: does an arm think longer, and did eviction happen at all?"""

from __future__ import annotations

from dashboard import parts, session
from dashboard.contents import lengths

parts.page(lengths.build, session.current())
