"""Differences: which arm is better or worse than the reference?"""

from __future__ import annotations

from dashboard import parts, session
from dashboard.contents import differences

parts.page(differences.build, session.current())
