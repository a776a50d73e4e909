"""Accuracy: how good is every arm?"""

from __future__ import annotations

from dashboard import parts, session
from dashboard.contents import accuracy

parts.page(accuracy.build, session.current())
