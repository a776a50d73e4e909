"""Output checks of LiveCodeBench: lines equal as text or as decimals, values equal as Python has them; no tolerance.

The paper's harness allows numbers to differ by 1e-6, which `tolerance` stands for.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation


def same_output(prediction: str, expected: str, tolerance: float = 0.0) -> bool:
    """Equal line counts, and each pair of lines equal after stripping, or equal as lists of decimals (1.0 = 1)."""
    a, b = ([line.strip() for line in text.strip().split("\n")] for text in (prediction, expected))
    return len(a) == len(b) and all(x == y or _same_decimals(x, y, tolerance) for x, y in zip(a, b, strict=True))


def same_value(result: object, expected: object, tolerance: float = 0.0) -> bool:
    """Python's equality of JSON values; a result's top-level tuple arrives here as a list, a nested one does not."""
    if result == expected:
        return True
    if not tolerance:
        return False
    if isinstance(result, list) and isinstance(expected, list):
        return len(result) == len(expected) and all(
            same_value(x, y, tolerance) for x, y in zip(result, expected, strict=True)
        )
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (result, expected))
    return numbers and abs(float(result) - float(expected)) <= tolerance  # type: ignore[arg-type]


def _same_decimals(a: str, b: str, tolerance: float) -> bool:
    try:
        left, right = ([Decimal(part) for part in text.split()] for text in (a, b))
        if not tolerance or len(left) != len(right):
            return left == right != []
        return all(x == y or abs(x - y) <= Decimal(tolerance) for x, y in zip(left, right, strict=True)) and left != []
    except (InvalidOperation, ValueError):
        return False
