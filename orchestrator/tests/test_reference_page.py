"""Pages that generators make from the code are what they make of it today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("generator", "page"), [("job_reference.py", "job_reference.md"), ("policy_reference.py", "policies.md")]
)
def test_a_generated_page_is_current(generator: str, page: str) -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "infra" / generator)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert made.stdout == (ROOT / "docs" / page).read_text(encoding="utf-8"), f"run it and commit docs/{page}"
