"""User mistakes: one paragraph, no traceback, exit 2 (style rule 2)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend. The text says value, place, choices and next step; the CLI prints it and exits 2."""


def closest(value: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or an empty string."""
    match = difflib.get_close_matches(value, list(known), n=1)
    return f" Did you mean '{match[0]}'?" if match else ""
