"""Numbers as reports print them: points of accuracy with one digit, `-` where a number does not exist."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

MISSING = "-"


def number(value: Any, form: str) -> str:
    """`format(value, form)`, or MISSING."""
    return MISSING if pd.isna(value) else format(value, form)


def points(fraction: float, *, signed: bool = False) -> str:
    """A fraction in points: 0.125 is `12.5`, signed `+12.5`."""
    return number(100 * fraction, "+.1f" if signed else ".1f")


def percent(fraction: float) -> str:
    """A share: 0.125 is `12 %`."""
    return MISSING if pd.isna(fraction) else f"{100 * fraction:.0f} %"


def interval(low: float, high: float, *, signed: bool = True) -> str:
    """An interval in points: `[-1.9, +3.8]`."""
    return MISSING if math.isnan(low) else f"[{points(low, signed=signed)}, {points(high, signed=signed)}]"


def p_value(p: float) -> str:
    """`.031`, `<.001`, `1.000`."""
    return MISSING if math.isnan(p) else "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
