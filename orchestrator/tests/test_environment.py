"""Driver and workers must run one program: what is compared, and what a difference says."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from orchestrator.environment import code_hash, installation, mismatch

ROOT = Path(__file__).resolve().parents[2]


def test_the_code_hash_changes_with_code_and_not_with_tests(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "policies", tmp_path / "policies", ignore=shutil.ignore_patterns("__pycache__"))
    before = code_hash(tmp_path)
    (tmp_path / "policies" / "tests" / "test_new.py").write_text("x = 1\n")
    assert code_hash(tmp_path) == before
    file = tmp_path / "policies" / "methods" / "recent.py"
    file.write_text(file.read_text() + "# changed\n")
    assert code_hash(tmp_path) != before


def test_a_difference_names_both_values_and_the_node() -> None:
    here = installation()
    assert mismatch(here, here) is None
    assert here["vllm"] != "none"
    there = {**here, "ray": "2.59.0", "evictbench code": "0" * 16}
    text = mismatch(here, there)
    assert text is not None
    assert f"ray: driver 2.59.0, here {here['ray']}" in text
    assert f"evictbench code: driver {'0' * 16}, here {here['evictbench code']}" in text
    assert platform.node() in text
    assert mismatch({}, {"new": "1"}) is not None
