"""Child of `symbolic.Checker`: reads {"gold", "answer"} lines, writes {"equal"} lines, until its input ends."""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Basic, Expr, Float, I

MEMORY_BYTES = 3 * 1024**3
DIGITS = 50


def main() -> None:
    """Serve until stdin closes. Standard output carries replies only, whatever a library prints."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    replies.write('{"ready": true}\n')
    for line in sys.stdin:
        question = json.loads(line)
        replies.write(json.dumps({"equal": _equal(question["gold"], question["answer"])}) + "\n")


def _equal(gold: str, answer: str) -> bool:
    try:
        wanted, given = _parse(gold), _parse(answer)
        # gold first: the comparison is not symmetric
        if not wanted or not given or _far(wanted[0], given[0]):
            return False
        if not verify(wanted, given, timeout_seconds=None, allow_set_relation_comp=True):
            numbers = _complex(wanted[0], given[0])
            return numbers is not None and _equal_to_many_digits(*numbers)
        return _equal_to_many_digits(wanted[0], given[0])
    except (MemoryError, RecursionError, OverflowError):
        return False


def _far(wanted: Any, given: Any) -> bool:
    """Constants that differ in their first digits need no algebra, which takes ten times as long."""
    if not (isinstance(wanted, Expr) and isinstance(given, Expr)) or wanted.free_symbols or given.free_symbols:
        return False
    a, b = wanted.evalf(15), given.evalf(15)
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return False
    return bool(abs(a - b) > 1e-3 * (abs(a) + abs(b)))


def _complex(wanted: Any, given: Any) -> tuple[Expr, Expr] | None:
    """Both with the symbol i as the imaginary unit, where it is their only symbol."""
    if not (isinstance(wanted, Expr) and isinstance(given, Expr)):
        return None
    symbols = wanted.free_symbols | given.free_symbols
    if {str(symbol) for symbol in symbols} != {"i"}:
        return None
    units = dict.fromkeys(symbols, I)
    return wanted.subs(units), given.subs(units)


# A gold answer meets many others: each sample of its problem, in every arm.
@lru_cache(maxsize=8192)
def _parse(answer: str) -> list[Any]:
    # boxed on both sides: inside dollars a formula that does not parse falls back to some number in it
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    return parse(f"\\boxed{{{answer}}}", config, extraction_mode="first_match", parsing_timeout=None)


def _equal_to_many_digits(wanted: Any, given: Any) -> bool:
    """Constants must agree to DIGITS relative digits: the library's six places make 2^-99 equal 2^-98."""
    if not (isinstance(wanted, Basic) and isinstance(given, Basic)):
        return True
    if not (isinstance(wanted, Expr) and isinstance(given, Expr)) or wanted.free_symbols or given.free_symbols:
        return True
    a, b = wanted.evalf(DIGITS + 10), given.evalf(DIGITS + 10)
    if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
        return True
    scale = abs(a)
    if scale == 0 or abs(b) == 0:
        return bool(scale == abs(b))
    tolerance = 10.0**-6 if wanted.has(Float) or given.has(Float) else 10.0 ** -(DIGITS - 10)
    return bool(abs(a - b) / scale < tolerance)


if __name__ == "__main__":
    main()
