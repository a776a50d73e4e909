"""Output checks of LiveCodeBench: lines equal as text or as decimals, values equal as Python has them; no tolerance."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation


def same_output(prediction: str, expected: str) -> bool:
    """Equal line counts, and each pair of lines equal after stripping, or equal as lists of decimals (1.0 = 1)."""
    a, b = ([line.strip() for line in text.strip().split("\n")] for text in (prediction, expected))
    return len(a) == len(b) and all(x == y or _same_decimals(x, y) for x, y in zip(a, b, strict=True))


def same_value(result: object, expected: object) -> bool:
    """Python's equality of JSON values; a result's top-level tuple arrives here as a list, a nested one does not."""
    return bool(result == expected)


def _same_decimals(a: str, b: str) -> bool:
    try:
        return [Decimal(part) for part in a.split()] == [Decimal(part) for part in b.split()] != []
    except InvalidOperation:
        return False
