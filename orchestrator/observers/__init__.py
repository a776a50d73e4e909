"""What listens to a running campaign: metrics, an event log, crash reports.

Each is told every event with the actions that the scheduler answered with, in order, and the books after them. None may
change anything, and a failure of one is never a failure of the campaign.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.ledger import Books
from orchestrator.messages import Action, Event


class Observer(Protocol):
    """Told from the driver's thread; must return within milliseconds."""

    def saw(self, event: Event, actions: Sequence[Action], books: Books) -> None:
        """An event and its actions; books are read, never kept."""
