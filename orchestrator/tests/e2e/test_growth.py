"""A driver whose plan grows while it runs makes the new samples before it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orchestrator.tests.e2e.harness import Site

# Instead of results, which simulated rows have none of: one sample until all of it is committed, then a second.
_SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from rich.console import Console
from orchestrator import adaptive, campaign
from orchestrator.backend_local import LocalBackend

def decided(plan, store):
    first = len(list(Path(store).glob("generations/*/s0000-*.parquet"))) >= 9
    return replace(plan, cells=tuple(replace(cell, samples_max=2 if first else 1) for cell in plan.cells))

adaptive.decided = decided
sys.exit(campaign.run(Path({job!r}), Console(width=300), LocalBackend))
"""


def drive(site: Site) -> subprocess.Popen[str]:
    return site.spawn([sys.executable, "-c", _SCRIPT.format(job=str(site.job))])


def test_more_samples_are_made_in_the_same_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    output, _ = drive(site).communicate(timeout=120)
    assert "more samples where intervals are still wide: 72 rows" in output
    assert len(site.rows()) == len(set(site.rows())) == 2 * 3 * site.limit
    assert site.graded() == site.rows()
    assert site.leftovers() == []
    output, _ = drive(site).communicate(timeout=60)
    assert "nothing to run" in output
