"""`evictbench verify statistics FILE`: recompute every number of a file of tables, to 1e-9.

A file has `tables`: name -> {"a": [[grade per sample] per problem], "b": same, "expected": {...}}, or {"p": [...],
"expected": {"holm", "bh", ...}}. Grades are 0, 1, or fractions of 1 ("1/3", 0.5); samples may differ in number between
problems and arms, and a problem that has none in either arm is in no pair. `alpha` of a table is .05 unless it says
otherwise. Numbers are what this package computes for its reports; exact ones may be given as fractions, and intervals
at any level (`ci90_t`, `ci99_bootstrap_exact`). null is an undefined number in `expected`, and no answer (or a problem
without any) in `a` and `b`. A quantity this module does not know is a failure, never skipped. A count of p values below
alpha may take one within the tolerance of alpha either way. `cross_check` entries hold what other libraries approximate
and are not compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from orchestrator.stats import bootstrap, multiplicity, signs
from orchestrator.stats.arms import accuracy
from orchestrator.stats.intervals import UNKNOWN, t_interval
from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.verdict import excludes_zero

TOLERANCE = 1e-9
LEVEL = 0.05
# Reports give up on sample counts with a huge common multiple; a check may take its time.
POINTS = 1 << 24
# Grades finer than this are measured numbers, not grades.
FINEST_GRADE = 1000

_INTERVAL = re.compile(r"ci(\d{2}(?:\.\d+)?)_(normal|t|bootstrap_exact|bootstrap_exact_fraction)")
Grades = Sequence[Sequence[Any]]


def check(document: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """One (`table.quantity`, None or what is wrong) per expected number of every table of the file, in its order."""
    tables = document.get("tables") if isinstance(document, Mapping) else None
    if not isinstance(tables, Mapping) or not tables:
        yield "file", "not a file of this format: it has no tables"
        return
    for name, table in tables.items():
        try:
            compute = _multiplicity(table) if "p" in table else _comparison(table)
            expected = table["expected"]
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            yield str(name), f"not a table of this format: {type(error).__name__}: {error}"
            continue
        for quantity, wanted in expected.items():
            yield f"{name}.{quantity}", _problem(compute, quantity, wanted)


Compute = Callable[[str], Any]


def _comparison(table: Mapping[str, Any]) -> Compute:
    a, b, paired = _paired(table["a"], table["b"])
    alpha = float(table.get("alpha", LEVEL))
    exact = bootstrap.distribution(paired, POINTS)
    wins, losses, ties = paired.signs
    scale = paired.denominator * max(1, paired.n)

    def within_reach() -> bootstrap.Bootstrap:
        if exact is None:
            raise _TooFineError
        return exact

    known: dict[str, Callable[[], Any]] = {
        "n_problems": lambda: paired.n,
        "accuracy_a": lambda: accuracy(paired.correct_a, paired.samples_a).mean,
        "accuracy_b": lambda: accuracy(paired.correct_b, paired.samples_b).mean,
        "difference": lambda: paired.mean,
        "difference_exact": lambda: Fraction(int(paired.numerators.sum()), scale) if paired.n else math.nan,
        "per_problem_difference": lambda: [Fraction(int(value), paired.denominator) for value in paired.numerators],
        "sd_per_problem": lambda: paired.sd,
        "se_clustered": lambda: paired.se,
        "se_bootstrap_ideal": lambda: bootstrap.ideal_se(paired),
        "p_bootstrap_exact": lambda: within_reach().p_value if paired.n else math.nan,
        "wins": lambda: wins,
        "losses": lambda: losses,
        "ties": lambda: ties,
        "p_sign": lambda: signs.sign_test(wins, losses),
        "p_signflip_exact": lambda: signs.sign_flip_test(paired, POINTS),
        "significant_by_bootstrap": lambda: bool(paired.n) and excludes_zero(within_reach().interval(1 - alpha)),
        "significant_by_sign": lambda: signs.sign_test(wins, losses) < alpha,
        "se_unpaired_iid_WRONG": lambda: _unpaired(a, b),
    }

    def compute(quantity: str) -> Any:
        if named := _INTERVAL.fullmatch(quantity):
            return _interval(paired, within_reach, named[2], float(named[1]) / 100)
        return known[quantity]()

    return compute


def _interval(paired: Paired, exact: Callable[[], bootstrap.Bootstrap], kind: str, level: float) -> Any:
    if kind == "t":
        return t_interval(paired.d, level)
    if kind == "normal":
        half = float(stats.norm.ppf((1 + level) / 2)) * paired.se
        return paired.mean - half, paired.mean + half
    if not paired.n:
        return UNKNOWN
    return exact().exact_interval(level) if kind.endswith("fraction") else exact().interval(level)


def _multiplicity(table: Mapping[str, Any]) -> Compute:
    p = np.asarray(table["p"], dtype=np.float64)
    if p.ndim != 1 or ((p < 0) | (p > 1)).any():
        raise ValueError("p is not a list of numbers from 0 to 1")
    alpha = float(table.get("alpha", LEVEL))
    known: dict[str, Callable[[], Any]] = {
        "holm": lambda: multiplicity.holm(p),
        "bh": lambda: multiplicity.benjamini_hochberg(p),
        "n_reject_raw": lambda: _below(p, alpha),
        "n_reject_holm": lambda: _below(multiplicity.holm(p), alpha),
        "n_reject_bh": lambda: _below(multiplicity.benjamini_hochberg(p), alpha),
    }
    return lambda quantity: known[quantity]()


def _below(p: np.ndarray[tuple[int], np.dtype[np.float64]], alpha: float) -> range:
    """The counts that p values below alpha may have, when each is known to TOLERANCE."""
    return range(int((p < alpha - TOLERANCE).sum()), int((p <= alpha + TOLERANCE).sum()) + 1)


class _TooFineError(Exception):
    """The sample counts have no common multiple on which an exact distribution can be laid out."""


def _problem(compute: Compute, quantity: str, wanted: Any) -> str | None:
    try:
        found = compute(quantity)
    except KeyError:
        return "unknown quantity"
    except _TooFineError:
        return "not computed: sample counts without a usable common multiple"
    try:
        same = _equal(found, wanted)
    except (TypeError, ValueError, ZeroDivisionError):
        same = False
    return None if same else f"found {_shown(found)}, expected {_shown(wanted)}"


def _equal(found: Any, wanted: Any) -> bool:
    """Within TOLERANCE; a null or NaN is an undefined number, a string a fraction that must be met exactly."""
    if wanted is None or (isinstance(wanted, float) and math.isnan(wanted)):
        return found is None or bool(np.all(np.isnan(np.asarray(found, dtype=np.float64))))
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(_equal(x, y) for x, y in zip(found, wanted, strict=True))
    if isinstance(wanted, str):
        return isinstance(found, Fraction | int) and found == Fraction(wanted)
    if isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, range):
        return wanted in found
    return found is not None and math.isclose(found, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _shown(value: Any) -> str:
    if isinstance(value, range):
        return " or ".join(map(str, value))
    if isinstance(value, list | tuple | np.ndarray):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return str(value) if isinstance(value, Fraction | str) else repr(value)


def _paired(a: Grades, b: Grades) -> tuple[list[list[Fraction]], list[list[Fraction]], Paired]:
    """Grades of the problems that both arms answered, and their exact pairing."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} problems in a, {len(b)} in b")
    answered = [[_answers(problem) for problem in arm] for arm in (a, b)]
    both = [(x, y) for x, y in zip(*answered, strict=True) if x and y]
    arms = [[[_grade(grade) for grade in pair[side]] for pair in both] for side in (0, 1)]
    # Fractional grades become whole ones by counting each answer that many times; no difference changes.
    times = math.lcm(1, *(grade.denominator for arm in arms for answers in arm for grade in answers))
    counts = [
        np.array([value(answers) for answers in arm], dtype=np.int64)
        for arm in arms
        for value in (lambda answers: int(sum(answers) * times), lambda answers: len(answers) * times)
    ]
    return arms[0], arms[1], pair(*counts)


def _answers(problem: Sequence[Any] | None) -> list[Any]:
    return [answer for answer in problem or () if answer is not None]


def _grade(value: Any) -> Fraction:
    grade = Fraction(value).limit_denominator(FINEST_GRADE)
    if not 0 <= grade <= 1 or abs(float(grade) - float(Fraction(value))) > TOLERANCE:
        raise ValueError(f"grade {value!r} is neither 0, 1 nor a fraction of 1")
    return grade


def _unpaired(a: list[list[Fraction]], b: list[list[Fraction]]) -> float:
    """Standard error when answers count as independent and unpaired: the mistake, for contrast."""
    flat = [np.array([float(grade) for answers in arm for grade in answers]) for arm in (a, b)]
    return math.sqrt(sum(float(np.var(grades)) / grades.size for grades in flat)) if flat[0].size else math.nan
