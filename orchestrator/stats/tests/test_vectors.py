"""All shared tables, to 1e-9: numbers computed elsewhere with big integers and checked against other libraries."""

from __future__ import annotations

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from orchestrator.verify import statistics

TABLES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "statistics_vectors.json").read_text())["tables"]


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_the_table(name: str) -> None:
    results = dict(statistics.check({"tables": {name: TABLES[name]}}))
    assert len(results) == len(TABLES[name]["expected"])
    assert {quantity: problem for quantity, problem in results.items() if problem} == {}


@pytest.mark.parametrize("quantity", TABLES["small_6x4"]["expected"])
def test_a_wrong_number_is_found(quantity: str) -> None:
    table = copy.deepcopy(TABLES["small_6x4"])
    value = table["expected"][quantity]
    wrong = {bool: lambda: not value, str: lambda: "7/8", list: lambda: [value[1], *value[1:]]}
    table["expected"][quantity] = wrong.get(type(value), lambda: value + 1e-8)()
    if quantity == "per_problem_difference":
        table["expected"][quantity] = [*value[:-1], "1/3"]
    assert dict(statistics.check({"tables": {"t": table}}))[f"t.{quantity}"]


def test_an_unknown_quantity_and_a_foreign_table_fail() -> None:
    tables = {"t": {"p": [0.1], "expected": {"sidak": [0.1]}}, "u": {"expected": {}}}
    results = dict(statistics.check({"tables": tables}))
    assert results["t.sidak"] == "unknown quantity"
    assert "not a table" in str(results["u"])
    assert [problem is not None for _, problem in statistics.check({"tables": {}})] == [True]


def verified(table: dict[str, Any]) -> dict[str, str | None]:
    return dict(statistics.check({"tables": {"t": table}}))


def test_unequal_samples_fractions_of_a_point_and_unanswered_problems() -> None:
    a, b = [[1, 0, 1], [0.5, "1/2"], [1], [True]], [[0], [1, 0, 0, 0], [], [0, 0]]
    # Problem 3 has no answer in b: differences 2/3, 1/4 and 1.
    expected = {
        "n_problems": 3,
        "per_problem_difference": ["2/3", "1/4", "1"],
        "difference_exact": "23/36",
        "difference": 23 / 36,
        "wins": 3,
        "ci95_bootstrap_exact_fraction": ["1/4", "1"],
        # The 27 resampled sums in twelfths: 9, 3 x 14, 3 x 18, ...; the 7th and the 21st are the quartiles.
        "ci50_bootstrap_exact": [18 / 36, 28 / 36],
        "p_signflip_exact": 0.25,
        "p_bootstrap_exact": 0,
    }
    assert set(verified({"a": a, "b": b, "expected": expected}).values()) == {None}


def test_the_fraction_of_an_interval_is_exact_on_a_fine_lattice() -> None:
    counts = (7, 11, 13, 16)
    a, b = ([[1] * (k % 5 + 1) + [0] * (m - k % 5 - 1) for k, m in enumerate(counts * 5)] for _ in range(2))
    b = [[0] * m for m in counts * 5]
    names = ("ci95_bootstrap_exact", "ci95_bootstrap_exact_fraction", "difference_exact", "p_sign")
    found = verified({"a": a, "b": b, "expected": dict.fromkeys(names, "none")})
    low = str(found["t.ci95_bootstrap_exact_fraction"]).split("[")[1].split(",")[0]
    assert Fraction(low).denominator > 1000
    assert "found" in str(found["t.p_sign"])


@pytest.mark.parametrize("arms", [{"a": [], "b": []}, {"a": [[], [1]], "b": [[0], []]}])
def test_no_problem_in_common_leaves_everything_undefined(arms: dict[str, Any]) -> None:
    undefined = ("difference", "difference_exact", "sd_per_problem", "ci95_t", "ci95_normal", "ci95_bootstrap_exact")
    expected = {
        **dict.fromkeys(undefined),
        "p_bootstrap_exact": None,
        "se_unpaired_iid_WRONG": None,
        "accuracy_a": None,
    }
    counts = {"n_problems": 0, "wins": 0, "losses": 0, "ties": 0, "p_sign": 1.0, "p_signflip_exact": 1.0}
    verdicts = {"significant_by_bootstrap": False, "significant_by_sign": False, "per_problem_difference": []}
    assert set(verified({**arms, "expected": {**expected, **counts, **verdicts}}).values()) == {None}


@pytest.mark.parametrize(
    "table",
    [
        {"a": [[1]], "b": [[1], [0]], "expected": {"wins": 0}},
        {"a": [[2]], "b": [[1]], "expected": {"wins": 0}},
        {"a": [[0.12345]], "b": [[1]], "expected": {"wins": 0}},
        {"a": [["x"]], "b": [[1]], "expected": {"wins": 0}},
        {"a": 1, "b": 2, "expected": {}},
        {"p": [1.5], "expected": {"holm": [1]}},
        {"p": [0.5]},
        [],
    ],
)
def test_a_table_of_another_kind_fails_by_name(table: Any) -> None:
    assert "not a table of this format" in str(verified(table)["t"])


def test_answers_that_are_null_are_none() -> None:
    a, b = [[1, None, 0], None, [1]], [[0], [1], [0, None]]
    assert set(verified({"a": a, "b": b, "expected": {"n_problems": 2, "difference": 0.75}}).values()) == {None}


def test_a_lattice_out_of_reach_leaves_the_other_numbers() -> None:
    primes = (7, 11, 13, 17, 19, 23, 29, 31)
    a, b = [[1] + [0] * (m - 1) for m in primes], [[0] * m for m in primes]
    names = ("p_bootstrap_exact", "ci95_bootstrap_exact", "significant_by_bootstrap")
    found = verified({"a": a, "b": b, "expected": {"wins": 8, "p_sign": 2**-7, **dict.fromkeys(names, 0)}})
    assert [found["t.wins"], found["t.p_sign"]] == [None, None]
    assert {found[f"t.{name}"] for name in names} == {"not computed: sample counts without a usable common multiple"}


def test_a_p_value_at_alpha_may_count_either_way() -> None:
    for count in (1, 2):
        assert verified({"p": [0.01, 0.05], "expected": {"n_reject_raw": count}}) == {"t.n_reject_raw": None}
    for count in (0, 3):
        assert verified({"p": [0.01, 0.05], "expected": {"n_reject_raw": count}})["t.n_reject_raw"]
    assert verified({"p": [0.01, 0.0501], "expected": {"n_reject_raw": 2}})["t.n_reject_raw"] == "found 1, expected 2"


def test_levels_and_undefined_p_values() -> None:
    adjusted = {"holm": [0.04, None, 0.04], "bh": [0.03, None, 0.03], "n_reject_raw": 1, "n_reject_holm": 0}
    assert set(verified({"p": [0.02, None, 0.03], "alpha": 0.025, "expected": adjusted}).values()) == {None}
    assert verified({"p": [], "expected": {"holm": [], "n_reject_bh": 0}}) == {"t.holm": None, "t.n_reject_bh": None}
    wrong = verified({"a": [[1]] * 9, "b": [[0]] * 9, "expected": {"ci95_t": "1/2", "wins": None, "ci5x_t": 1}})
    assert wrong == {
        "t.ci95_t": "found [1.0, 1.0], expected 1/2",
        "t.wins": "found 9, expected None",
        "t.ci5x_t": "unknown quantity",
    }
