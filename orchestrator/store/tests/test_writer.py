"""Commit semantics with real processes and real damage."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chunks import ChunkId
from orchestrator.errors import UserError
from orchestrator.store import files
from orchestrator.store.campaign import Control
from orchestrator.store.paths import GraderKey, StorePaths
from orchestrator.store.reader import Reader
from orchestrator.store.schema import GENERATIONS, GRADES, PLAN, SCHEMA_VERSION
from orchestrator.store.tests.stores import Arm, build_store, make_row, make_work
from orchestrator.store.writer import AlreadyCommitted, Committed, Store

CELL = Arm("random", "1" * 16).cell
CHUNK = ChunkId(CELL.cell_id, 0, 0)


def _race(
    path: Path,
    barrier: multiprocessing.synchronize.Barrier,
    attempt: int,
    queue: multiprocessing.Queue[tuple[int, str]],
) -> None:
    store = Store.open(path)
    work = make_work(CELL, CHUNK, 16)
    rows = [{**make_row(CELL, work, row), "attempt": attempt} for row in work.rows]
    barrier.wait()
    queue.put((attempt, type(store.commit_chunk(work, rows)).__name__))


def test_two_processes_race_for_one_chunk_and_exactly_one_wins(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(2), context.Queue()
    racers = [context.Process(target=_race, args=(tmp_path / "s", barrier, number, queue)) for number in (1, 2)]
    for racer in racers:
        racer.start()
    outcomes = dict(queue.get(timeout=60) for _ in racers)
    for racer in racers:
        racer.join(60)
    assert sorted(outcomes.values()) == ["AlreadyCommitted", "Committed"]
    winner = next(attempt for attempt, outcome in outcomes.items() if outcome == "Committed")
    assert set(Reader(tmp_path / "s").rows(["attempt"])["attempt"]) == {winner}
    assert list((tmp_path / "s" / "tmp").iterdir()) == []


def test_a_writer_killed_before_the_link_leaves_no_row(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from orchestrator.store import files\n"
        "from orchestrator.store.tests.test_writer import CELL, CHUNK, Store, make_row, make_work\n"
        "store = Store.open(sys.argv[1])\n"
        "os.link = lambda *_: os.kill(os.getpid(), 9)\n"
        "work = make_work(CELL, CHUNK, 16)\n"
        "store.commit_chunk(work, [make_row(CELL, work, row) for row in work.rows])\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=False)
    assert killed.returncode == -9
    store = Store.open(tmp_path / "s", create=False)
    assert store.committed([CELL.cell_id]) == set()
    draft = next(store.paths.temporary.iterdir())
    assert draft.suffix != ".parquet"
    long_ago = time.time() - files.STALE_SECONDS - 60
    os.utime(draft, (long_ago, long_ago))
    Store.open(tmp_path / "s")
    assert not draft.exists()


def test_the_second_commit_of_a_chunk_changes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    work = make_work(CELL, CHUNK, 16)
    rows = [make_row(CELL, work, row) for row in work.rows]
    first = store.commit_chunk(work, rows)
    data = first.path.read_bytes()
    second = store.commit_chunk(work, [{**row, "text": "later"} for row in rows])
    assert (type(first), type(second)) == (Committed, AlreadyCommitted)
    assert second.path.read_bytes() == data


@pytest.mark.parametrize("fault", ["missing", "doubled", "foreign"])
def test_rows_that_are_not_the_requests_are_refused(tmp_path: Path, fault: str) -> None:
    store = Store.open(tmp_path / "s")
    work = make_work(CELL, CHUNK, 16)
    rows = [make_row(CELL, work, row) for row in work.rows]
    other = {**rows[0], "row_id": f"{CELL.cell_id}/p015/0"}
    bad = {"missing": rows[1:], "doubled": [*rows[1:], rows[1]], "foreign": [other, *rows[1:]]}[fault]
    with pytest.raises(ValueError, match="are not its requests"):
        store.commit_chunk(work, bad)
    assert store.committed([CELL.cell_id]) == set()
    assert list(store.paths.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [({"n_output": None}, "n_output"), ({"n_output": "many"}, "schema"), ({"sample_seed": -1}, "schema")],
)
def test_a_value_outside_the_schema_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    store = Store.open(tmp_path / "s")
    work = make_work(CELL, CHUNK, 16)
    rows = [{**make_row(CELL, work, row), **change} for row in work.rows]
    with pytest.raises(ValueError, match=message):
        store.commit_chunk(work, rows)
    assert store.committed([CELL.cell_id]) == set()


def test_a_row_with_other_columns_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    work = make_work(CELL, CHUNK, 16)
    rows = [{**make_row(CELL, work, row), "gpu_name": "x"} for row in work.rows]
    for row in rows:
        del row["gpu"]
    with pytest.raises(ValueError, match=r"unknown columns \['gpu_name'\], missing columns \['gpu'\]"):
        store.commit_chunk(work, rows)


@settings(max_examples=20, deadline=None)
@given(
    chunks=st.sets(
        st.tuples(st.sampled_from(["a" * 16, "b" * 16]), st.integers(0, 12000), st.integers(0, 120000)), max_size=6
    )
)
def test_what_was_committed_is_what_is_listed(
    tmp_path_factory: pytest.TempPathFactory, chunks: set[tuple[str, int, int]]
) -> None:
    store = Store.open(tmp_path_factory.mktemp("h") / "s")
    wanted = {ChunkId(*chunk) for chunk in chunks}
    for chunk in wanted:
        assert files.create_if_absent(store.paths.generation(chunk), files.text_writer(""), store.paths.temporary)
        assert not files.create_if_absent(store.paths.generation(chunk), files.text_writer("x"), store.paths.temporary)
    for cell_id in ("a" * 16, "b" * 16, "c" * 16):
        assert store.committed([cell_id]) == {chunk for chunk in wanted if chunk.cell_id == cell_id}


def test_another_schema_version_is_refused_with_both_numbers(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    store.paths.marker.write_text(json.dumps({"schema_version": 7, "block": 8}))
    for opened in (Store.open, Reader):
        with pytest.raises(UserError, match=rf"schema version 7 .*version {SCHEMA_VERSION} "):
            opened(tmp_path / "s")


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        Store.open(tmp_path)
    with pytest.raises(UserError, match="is a file"):
        Store.open(tmp_path / "notes.txt")
    with pytest.raises(UserError, match="no store"):
        Store.open(tmp_path / "nothing", create=False)
    with pytest.raises(UserError, match="no store"):
        Reader(tmp_path / "nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]


def test_a_full_disk_is_refused_at_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(tmp_path / "s")

    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"cannot be written: No space left on device.*nothing was started"):
        Store.open(tmp_path / "s")
    assert list((tmp_path / "s" / "tmp").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_directory_is_refused_at_open(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o555)
    with pytest.raises(UserError, match="cannot be written"):
        Store.open(tmp_path / "s")


def test_campaign_files_round_trip(tmp_path: Path) -> None:
    campaign = build_store(tmp_path / "s", [Arm("random", "11")]).campaign("demo")
    assert campaign.spec() == "name: demo\n"
    assert campaign.resolved() == {"name": "demo"}
    assert campaign.environment() == {"git_revision": "abc1234"}
    assert campaign.plan().num_rows == 1
    assert campaign.control() is Control.RUN
    campaign.ask(Control.CANCEL)
    assert campaign.control() is Control.CANCEL
    now = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    assert campaign.record_attempt(CHUNK, 1, {"error": "Retryable", "at": now})
    assert not campaign.record_attempt(CHUNK, 1, {"error": "other", "at": now})
    assert [attempt["error"] for attempt in campaign.attempts()] == ["Retryable"]
    campaign.heartbeat("e0", {"running": 3})
    campaign.heartbeat("e0", {"running": 5})
    assert [beat["running"] for beat in campaign.live()] == [5]
    campaign.retire("e0")
    assert campaign.live() == []


def test_torn_campaign_files_mean_unknown(tmp_path: Path) -> None:
    campaign = build_store(tmp_path / "s", [Arm("random", "11")]).campaign("demo")
    for name in ("resolved.json", "plan.parquet", "control.json"):
        (campaign.directory / name).write_bytes(b"{")
    (campaign.directory / "attempts").mkdir()
    (campaign.directory / "attempts" / "x.json").write_bytes(b"")
    assert (campaign.resolved(), campaign.plan().num_rows, campaign.control()) == ({}, 0, Control.RUN)
    assert campaign.attempts() == []
    absent = campaign.__class__(StorePaths(tmp_path / "s"), "absent")
    assert (absent.spec(), absent.live(), absent.plan().num_rows) == (None, [], 0)


def test_every_column_says_what_it_means_and_travels_in_the_file(tmp_path: Path) -> None:
    for schema in (GENERATIONS, GRADES, PLAN):
        for field in schema:
            assert field.metadata[b"meaning"], field.name
            assert b"unit" in field.metadata, field.name
    store = build_store(tmp_path / "s", [Arm("random", "1" * 8)])
    found = pq.read_schema(store.paths.generation(CHUNK))
    assert found.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    assert found.field("keep").metadata[b"unit"] == b"tokens"


def test_grader_names_are_plain_directories() -> None:
    assert GraderKey("math_verify", 3).name == "math_verify-none-v3"
    assert GraderKey("x", 1, "org/judge-7b").name == "x-org_judge_7b-v1"
