"""Addresses of pages with choices, so that every number leads to what it is made of."""

from __future__ import annotations

from urllib.parse import urlencode

import pandas as pd

from dashboard import frames


def problems(row: pd.Series, discordant: bool = False) -> str:
    """The Problems page for the row's model and task."""
    choices = {"panel": row["panel_title"], **({"show": frames.Show.DIFFERING.value} if discordant else {})}
    return f"problems?{urlencode(choices)}"


def accuracy(row: pd.Series) -> str:
    """The Accuracy page at the row's budget."""
    return f"accuracy?{urlencode({'budget': row['budget']})}" if row["budget"] else "accuracy"
