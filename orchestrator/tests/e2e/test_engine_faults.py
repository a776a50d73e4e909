"""The same deaths with the real engine: vLLM loads, is killed in the middle of its work, and the store ends whole."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from orchestrator.tests.e2e.harness import Site, kill


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_vllm_and_its_driver_are_killed_and_every_row_is_made_once(tmp_path: Path) -> None:
    site = Site(tmp_path, limit=48, policies="random", max_tokens=1500, kind="vllm")
    process = site.start()
    site.until(lambda: site.engines() and site.chunks(), process, seconds=240)
    first = len(site.chunks())
    assert first < 6, "the engine was killed after its work"
    kill(site.engines()[0])
    site.until(lambda: len(site.chunks()) > first, process, seconds=240)
    assert len(site.chunks()) < 6, "the driver was killed after its work"
    kill(process.pid)
    process.wait()
    assert site.leftovers() == []
    before = {path: path.stat().st_mtime_ns for path in site.chunks()}

    status, output = site.run(seconds=240)
    assert status == 0, output
    assert {path: path.stat().st_mtime_ns for path in before} == before
    site.check_complete(cells=1)
    rows = [row for path in site.chunks() for row in pq.read_table(path).to_pylist()]
    assert {row["engine_kind"] for row in rows} == {"vllm"}
    assert len({row["engine_id"] for row in rows}) == 3
    assert all(row["events"] == row["expected_events"] > 0 for row in rows if row["n_output"] > 400)
