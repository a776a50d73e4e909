"""Compression: how does every arm decay as keep shrinks?"""

from __future__ import annotations

from dashboard import parts, session
from dashboard.contents import compression

parts.page(compression.build, session.current())
