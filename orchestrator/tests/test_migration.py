"""Migration of a store that the release before wrote: orchestrator/tests/version_1, made by its own code."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.migration import migrate
from orchestrator.store.paths import StorePaths
from orchestrator.store.reader import COLUMNS, Reader
from orchestrator.store.schema import GENERATIONS, GRADES, SCHEMA_VERSION
from orchestrator.store.tests.stores import Arm, build_store
from orchestrator.store.writer import Store

OLD = Path(__file__).with_name("version_1")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return shutil.copytree(OLD, tmp_path / "store")


def everything(store: Path) -> pd.DataFrame:
    return Reader(store).rows(COLUMNS)


def versions(store: Path) -> set[bytes]:
    return {pq.read_schema(path).metadata[b"schema_version"] for path in store.rglob("*.parquet")}


def test_an_older_store_is_read_as_it_is_and_added_to_only_after_migration(old: Path) -> None:
    assert len(everything(old)) == 8
    with pytest.raises(UserError, match="evictbench migrate"):
        Store.open(old)
    done = CliRunner().invoke(main, ["migrate", str(old)])
    assert (done.exit_code, "version 1 to 2, 5 files rewritten" in done.output) == (0, True), done.output
    build_store(old, [Arm("recent", "1" * 8)])
    assert len(everything(old)) == 16


def test_rows_and_grades_stay_and_missing_columns_are_null(old: Path) -> None:
    before = everything(old)
    migrate(StorePaths(old))
    after = everything(old)
    pd.testing.assert_frame_equal(before, after)
    assert after[["nan_scores", "gpu_ids"]].isna().all(axis=None)
    assert versions(old) == {str(SCHEMA_VERSION).encode()}
    for folder, schema in (("generations", GENERATIONS), ("grades", GRADES)):
        assert all(pq.read_schema(path).equals(schema) for path in (old / folder).rglob("*.parquet"))


def test_a_second_migration_changes_nothing(old: Path) -> None:
    migrate(StorePaths(old))
    before = {path: path.stat().st_mtime_ns for path in old.rglob("*.parquet")}
    again = CliRunner().invoke(main, ["migrate", str(old)])
    assert "is of version 2 already: 5 files" in again.output
    assert {path: path.stat().st_mtime_ns for path in old.rglob("*.parquet")} == before


def test_killed_at_any_file_it_goes_on(old: Path) -> None:
    wanted = everything(old)
    for stop in (1, 4):
        script = (
            "import os, signal, sys; from pathlib import Path\n"
            "from orchestrator.migration import migrate; from orchestrator.store.paths import StorePaths\n"
            f"strike = lambda done: os.kill(os.getpid(), signal.SIGKILL) if done == {stop} else None\n"
            "migrate(StorePaths(Path(sys.argv[1])), strike)"
        )
        assert subprocess.run([sys.executable, "-c", script, str(old)], check=False).returncode == -signal.SIGKILL
        assert json.loads((old / "store.json").read_text())["schema_version"] == 1
        pd.testing.assert_frame_equal(everything(old), wanted)
    assert migrate(StorePaths(old)).kept == 4
    pd.testing.assert_frame_equal(everything(old), wanted)


def test_a_newer_store_is_refused_unchanged(old: Path) -> None:
    (old / "store.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1, "block": 8}))
    done = CliRunner().invoke(main, ["migrate", str(old)])
    assert (done.exit_code, "schema version 3" in done.output) == (2, True), done.output
    assert versions(old) == {b"1"}


def test_a_store_in_use_is_refused(old: Path) -> None:
    live = old / "campaigns" / "demo" / "drivers" / "d1.json"
    live.parent.mkdir()
    live.write_text(json.dumps({"driver": "d1", "updated_at": datetime.now(UTC).isoformat()}))
    with pytest.raises(UserError, match="is being driven"):
        migrate(StorePaths(old))


def test_a_damaged_file_stops_it_and_is_named(old: Path) -> None:
    victim = next((old / "generations").rglob("*.parquet"))
    victim.write_bytes(victim.read_bytes()[:-9])
    with pytest.raises(UserError, match=victim.name):
        migrate(StorePaths(old))
    assert json.loads((old / "store.json").read_text())["schema_version"] == 1
