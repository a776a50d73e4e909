"""Protection: is it the score, or that the prompt stays?"""

from __future__ import annotations

from dashboard import parts, session
from dashboard.contents import protection

parts.page(protection.build, session.current())
