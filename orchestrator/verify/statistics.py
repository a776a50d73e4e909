"""`evictbench verify statistics FILE`: recompute every number of a file of tables, to 1e-9.

A file has `tables`: name -> {"a": [[0/1 per sample] per problem], "b": same, "expected": {...}}, or {"p": [...],
"expected": {"holm", "bh", ...}}. Numbers are what this package computes for its reports; exact ones may be given as
fractions. A quantity this module does not know is a failure, never skipped. `cross_check` entries hold what other
libraries approximate and are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from orchestrator.stats import bootstrap, multiplicity, signs
from orchestrator.stats.arms import accuracy
from orchestrator.stats.intervals import t_interval
from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.verdict import excludes_zero

TOLERANCE = 1e-9
LEVEL = 0.05


def check(document: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """One (`table.quantity`, None or what is wrong) per expected number of every table of the file, in its order."""
    tables = document.get("tables") if isinstance(document, Mapping) else None
    if not isinstance(tables, Mapping) or not tables:
        yield "file", "not a file of this format: it has no tables"
        return
    for name, table in tables.items():
        try:
            found = _multiplicity(table) if "p" in table else _comparison(table)
            for quantity, wanted in table["expected"].items():
                compute = found.get(quantity)
                yield f"{name}.{quantity}", _problem(compute, wanted)
        except (KeyError, TypeError, ValueError) as error:
            yield name, f"not a table of this format: {type(error).__name__}: {error}"


def _comparison(table: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    a, b = table["a"], table["b"]
    paired = pair(_correct(a), _answers(a), _correct(b), _answers(b))
    exact = bootstrap.distribution(paired)
    if exact is None:
        raise ValueError("no problems, or sample counts without a usable common multiple")
    wins, losses, ties = paired.signs
    scale = paired.denominator * paired.n
    return {
        "n_problems": lambda: paired.n,
        "accuracy_a": lambda: accuracy(paired.correct_a, paired.samples_a).mean,
        "accuracy_b": lambda: accuracy(paired.correct_b, paired.samples_b).mean,
        "difference": lambda: paired.mean,
        "difference_exact": lambda: Fraction(int(paired.numerators.sum()), scale),
        "per_problem_difference": lambda: [Fraction(int(value), paired.denominator) for value in paired.numerators],
        "sd_per_problem": lambda: paired.sd,
        "se_clustered": lambda: paired.se,
        "se_bootstrap_ideal": lambda: bootstrap.ideal_se(paired),
        "ci95_normal": lambda: _normal(paired),
        "ci95_t": lambda: t_interval(paired.d),
        "ci95_bootstrap_exact": exact.interval,
        "ci95_bootstrap_exact_fraction": lambda: [Fraction(x).limit_denominator(scale) for x in exact.interval()],
        "p_bootstrap_exact": lambda: exact.p_value,
        "wins": lambda: wins,
        "losses": lambda: losses,
        "ties": lambda: ties,
        "p_sign": lambda: signs.sign_test(wins, losses),
        "p_signflip_exact": lambda: signs.sign_flip_test(paired),
        "significant_by_bootstrap": lambda: excludes_zero(exact.interval()),
        "significant_by_sign": lambda: signs.sign_test(wins, losses) < LEVEL,
        "se_unpaired_iid_WRONG": lambda: _unpaired(a, b),
    }


def _multiplicity(table: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    p = np.asarray(table["p"], dtype=np.float64)
    return {
        "holm": lambda: multiplicity.holm(p),
        "bh": lambda: multiplicity.benjamini_hochberg(p),
        "n_reject_raw": lambda: int((p < LEVEL).sum()),
        "n_reject_holm": lambda: int((multiplicity.holm(p) < LEVEL).sum()),
        "n_reject_bh": lambda: int((multiplicity.benjamini_hochberg(p) < LEVEL).sum()),
    }


def _problem(compute: Callable[[], Any] | None, wanted: Any) -> str | None:
    if compute is None:
        return "unknown quantity"
    found = compute()
    return None if _equal(found, wanted) else f"found {_shown(found)}, expected {_shown(wanted)}"


def _equal(found: Any, wanted: Any) -> bool:
    """Within TOLERANCE; a null stands for an undefined number, a string for a fraction that must be met exactly."""
    if wanted is None:
        return bool(np.all(np.isnan(found)))
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(_equal(x, y) for x, y in zip(found, wanted, strict=True))
    if isinstance(wanted, str):
        return isinstance(found, Fraction) and found == Fraction(wanted)
    if isinstance(wanted, bool):
        return found is wanted
    return found is not None and math.isclose(found, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple | np.ndarray):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    return str(value) if isinstance(value, Fraction | str) else repr(value)


def _correct(arm: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([sum(answers) for answers in arm], dtype=np.int64)


def _answers(arm: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([len(answers) for answers in arm], dtype=np.int64)


def _normal(paired: Paired) -> tuple[float, float]:
    half = float(stats.norm.ppf(0.975)) * paired.se
    return paired.mean - half, paired.mean + half


def _unpaired(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> float:
    """Standard error when answers count as independent and unpaired: the mistake, for contrast."""
    return math.sqrt(sum(float(np.var(flat)) / flat.size for flat in (np.concatenate(a), np.concatenate(b))))
