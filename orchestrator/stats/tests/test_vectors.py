"""All shared tables, to 1e-9: numbers computed elsewhere with big integers and checked against other libraries."""

from __future__ import annotations

import copy
import json
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
