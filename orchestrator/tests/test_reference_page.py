"""docs/job_reference.md is what its generator makes from the models of today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_job_reference_is_current() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "infra" / "job_reference.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert made.stdout == (ROOT / "docs" / "job_reference.md").read_text(encoding="utf-8")
