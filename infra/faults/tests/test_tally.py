"""Storms are recorded, found again and added up."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from infra.faults import tally
from infra.faults.tally import Results, Tally


def test_a_recorded_storm_is_read_back_and_sums_count_kinds(tmp_path: Path) -> None:
    one = Tally(campaigns=1, counted=Counter({"worker-killed": 2}), rows=288, seconds=3.5)
    two = Tally(campaigns=1, counted=Counter({"worker-killed": 1, "disk-full": 4}), lost=1, broken=["seed 2: lost"])
    results = Results(tmp_path / "r")
    assert results.storms("local") == {}
    results.record("local", 1, one)
    results.record("local", 2, two)
    assert results.storms("local") == {1: one, 2: two}
    both = tally.total(results.storms("local").values())
    assert (both.faults, both.counted["worker-killed"], both.clean, one.clean) == (7, 3, False, True)
    assert results.backends() == ["local"]


def test_the_page_keeps_what_stands_around_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "faults.md"
    page.write_text(f"before\n{tally.BEGIN}\nold\n{tally.END}\nafter\n")
    tally.write(page, {"local": Tally(counted=Counter({"disk-full": 1200}))})
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| disk-full | 1,200 |" in text
    assert "old" not in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks"):
        tally.write(page, {})
