"""Tests of a LiveCodeBench item; private ones may be a packed pickle of a text, decoded with every global refused."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import UserError


@dataclass(frozen=True, slots=True)
class Case:
    """Input and wanted output of one run; functional ones hold one JSON value a line."""

    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Item:
    """Everything a judge needs of a problem; function is empty for programs that read standard input."""

    function: str
    cases: tuple[Case, ...]


class _TextOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"refused {module}.{name}")


def item(row: Mapping[str, Any]) -> Item:
    """The tests of a row with the data set's fields. Raises UserError for tests that cannot be read, or none at all."""
    name = row.get("question_id", "?")
    try:
        tests = json.loads(row["public_test_cases"]) + private(row["private_test_cases"])
        metadata = json.loads(row.get("metadata") or "{}")
        cases = tuple(Case(str(test["input"]), str(test["output"])) for test in tests)
        functional = {test["testtype"] == "functional" for test in tests}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"tests of problem {name} cannot be read: {type(error).__name__}: {error}.") from error
    if not cases:
        raise UserError(f"problem {name} has no test, so every program would pass.")
    if len(functional) != 1:
        raise UserError(f"problem {name} mixes tests on standard input with tests of a function.")
    return Item(metadata["func_name"] if functional.pop() else "", cases)


def private(text: str) -> list[Any]:
    """JSON, or base64 of zlib of a pickle of JSON. Raises ValueError."""
    try:
        tests = json.loads(text)
    except json.JSONDecodeError:
        try:
            raw = zlib.decompress(base64.b64decode(text, validate=True))
            tests = json.loads(_TextOnly(io.BytesIO(raw)).load())
        except (zlib.error, pickle.UnpicklingError, EOFError, TypeError) as error:
            raise ValueError(f"private tests are neither JSON nor its packed form: {error}") from error
    if not isinstance(tests, list):
        raise ValueError("private tests are not a list")
    return tests
