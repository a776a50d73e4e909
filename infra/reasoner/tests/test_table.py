"""The reasoner's table says what the rows say."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.reasoner.table import MARKS, main
from orchestrator.store.tests.stores import Arm, build_store


def test_every_arm_and_keep_stands_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path / "store", [Arm("full", "1111"), Arm("random", "1110"), Arm("recent", "0110")])
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["table", str(tmp_path / "store"), "--write", str(page)])
    main()
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{MARKS[0]}\n### ")
    assert text.endswith(f"{MARKS[1]}\nafter\n")
    assert "old" not in text
    accuracy, difference = text.split("Points more than")
    assert "Full cache: 1.00 [" in accuracy
    assert "| random | prompt | 0.75 [" in accuracy
    assert "| recent | prompt | 0.50 [" in accuracy
    assert "| recent | prompt | -25 [" in difference
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(SystemExit, match="once each"):
        main()
