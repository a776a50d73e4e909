"""verify counts, names what differs, and refuses what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.commands.verify import command, kinds
from orchestrator.errors import UserError

CASES = [
    {"id": "right", "grader": "integer", "gold": "42", "response": "\\boxed{42}", "expected": True},
    {"id": "wrong", "grader": "integer", "gold": "42", "response": "\\boxed{41}", "expected": True},
]


def test_a_failed_case_is_named_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(CASES))
    result = CliRunner().invoke(command, ["graders", str(file)])
    assert result.exit_code == 1
    assert result.output.startswith("FAIL wrong: ")
    assert result.output.splitlines()[-1] == "1 passed, 1 failed"
    file.write_text(json.dumps(CASES[:1]))
    result = CliRunner().invoke(command, ["graders", str(file)])
    assert (result.exit_code, result.output) == (0, "1 passed, 0 failed\n")


def test_unknown_kinds_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown kind 'grader'.*Did you mean 'graders'"):
        CliRunner().invoke(command, ["grader", "x.json"], catch_exceptions=False)
    with pytest.raises(UserError, match="No such file"):
        CliRunner().invoke(command, ["graders", str(tmp_path / "none.json")], catch_exceptions=False)
    (tmp_path / "torn.json").write_text("[{")
    with pytest.raises(UserError, match="is not JSON"):
        CliRunner().invoke(command, ["graders", str(tmp_path / "torn.json")], catch_exceptions=False)


def test_every_kind_has_a_check() -> None:
    assert {"graders", "statistics", "code-execution"} <= set(kinds())
