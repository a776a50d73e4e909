"""A store in a bucket, against a real S3 service on loopback that honours If-None-Match."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.chunks import ChunkId
from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.store import mirror, semantics, upkeep
from orchestrator.store.campaign import Control
from orchestrator.store.paths import StorePaths, chunk_files
from orchestrator.store.reader import Reader
from orchestrator.store.tests.bucket import BUCKET, served
from orchestrator.store.tests.stores import GRADER, Arm, build_store, commit_block, make_row, make_work
from orchestrator.store.writer import AlreadyCommitted, Committed, Store

ARMS = [Arm("full", "1" * 16), Arm("random", "1t10" * 4)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    directory = tmp_path_factory.mktemp("s3")
    with served(directory) as environment:
        yield directory / "objects" / BUCKET, environment


@pytest.fixture
def store(
    service: tuple[Path, dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Path:
    """A URL of the test's own, as pathlib makes of it."""
    for name, value in service[1].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(f"s3://{BUCKET}/{request.node.name}")


@pytest.fixture
def objects(service: tuple[Path, dict[str, str]], store: Path) -> Path:
    """Where the service keeps the store's objects."""
    return service[0] / store.name


def row_ids(reader: Reader) -> list[str]:
    return sorted(reader.rows(("row_id",))["row_id"])


def commit(url: str, engine: str) -> str:
    """One attempt at the same chunk, from a process of its own; the engine's name if it won."""
    cell = ARMS[0].cell
    work = make_work(cell, ChunkId(cell.cell_id, 7, 0), 8)
    rows = [{**make_row(cell, work, row), "engine_id": engine} for row in work.rows]
    return engine if isinstance(Store.open(url).commit_chunk(work, rows), Committed) else ""


def test_another_machine_reads_what_this_one_committed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = build_store(store, ARMS)
    here = row_ids(Reader(store))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert made.paths.root != StorePaths(store).root
    there = Reader(store)
    assert (row_ids(there), len(here)) == (here, 32)
    assert there.cells()["graded"].tolist() == [16, 16]
    assert there.transcript(here[0]).startswith("<think>")
    commit_block(made, ARMS[0].cell, ChunkId(ARMS[0].cell.cell_id, 1, 0), "1" * 16)
    there.refresh()
    assert len(row_ids(there)) == 40


def test_of_two_processes_one_commits(store: Path, objects: Path) -> None:
    build_store(store, ARMS)
    url = f"s3://{BUCKET}/{store.name}"
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        winners = sorted(pool.map(commit, [url] * 2, ["a", "b"]))
    assert winners in (["", "a"], ["", "b"])
    assert set(Reader(store).rows(("engine_id", "sample")).query("sample == 7")["engine_id"]) == {winners[1]}
    assert not list(objects.rglob("*.inprogress"))


def test_a_lost_race_changes_nothing(store: Path) -> None:
    made = build_store(store, ARMS)
    chunk, _ = next(chunk_files(made.paths.generations))
    arm = next(arm for arm in ARMS if arm.cell.cell_id == chunk.cell_id)
    work = make_work(arm.cell, chunk, 16)
    again = made.commit_chunk(work, [make_row(arm.cell, work, row, "0") for row in work.rows])
    assert isinstance(again, AlreadyCommitted)
    assert made.holds(chunk)
    assert not made.holds(ChunkId(chunk.cell_id, 99, 0))


def test_requests_and_heartbeats_cross_machines(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Store.open(store).campaign("demo")
    here.submit("name: demo\n", {"name": "demo"}, {}, [])
    here.heartbeat("e1", {"state": "ready"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    there = Store.open(store).campaign("demo")
    assert (there.spec(), there.live()[0]["engine_id"]) == ("name: demo\n", "e1")
    there.ask(Control.PAUSE)
    assert here.control() is Control.PAUSE
    here.retire("e1")
    assert there.live() == []


def test_grades_made_again_replace_the_copies(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build_store(store, [ARMS[0]])
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    reader = Reader(store)
    assert reader.cells()["graded"].tolist() == [16]
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    made.discard_grades(GRADER, made.committed([ARMS[0].cell.cell_id]))
    reader.refresh()
    assert reader.cells()["graded"].tolist() == [0]


def test_merge_and_prune_work_on_buckets(store: Path, objects: Path, tmp_path: Path) -> None:
    build_store(tmp_path / "local", ARMS)
    into = CliRunner().invoke(main, ["merge", str(tmp_path / "local"), "--into", f"s3://{BUCKET}/{store.name}"])
    assert into.exit_code == 0, into.output
    assert row_ids(Reader(store)) == row_ids(Reader(tmp_path / "local"))
    back = upkeep.merge(StorePaths(store), Store.open(tmp_path / "back").paths)
    assert (back.chunks, back.grades, back.campaigns) == (4, 4, 1)
    done = CliRunner().invoke(main, ["prune", f"s3://{BUCKET}/{store.name}", "--campaign", "demo", "--yes"])
    assert done.exit_code == 0, done.output
    assert [path.name for path in objects.rglob("*") if path.is_file()] == ["store.json"]


def test_status_and_compact_take_a_bucket(store: Path, objects: Path) -> None:
    build_store(store, ARMS)
    url = f"s3://{BUCKET}/{store.name}"
    shown = CliRunner().invoke(main, ["status", "--store", url, "--format", "json"])
    assert [cell["done"] for cell in json.loads(shown.output)[0]["cells"]] == [2, 2]
    packed = CliRunner().invoke(main, ["compact", url])
    assert packed.exit_code == 0, packed.output
    assert not (objects / "compact").exists()
    assert len(row_ids(Reader(store))) == 32


@pytest.mark.slow
def test_the_doctor_tries_a_bucket_with_two_processes(store: Path, objects: Path) -> None:
    observed = semantics.observe(store)
    assert list(observed.complaints()) == []
    assert not [path for path in objects.rglob("*") if path.is_file()]


def test_a_service_that_overwrites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, "Careless") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert "both commit a chunk" in next(semantics.observe(Path(f"s3://{BUCKET}/store")).complaints())
        with pytest.raises(UserError, match="If-None-Match"):
            Store.open(f"s3://{BUCKET}/store")


def test_a_silent_service_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match="s3://rows/store does not answer") as caught:
        Reader("s3://rows/store")
    assert "secret-of-the-test" not in str(caught.value)


def test_a_local_store_has_no_mirror(tmp_path: Path) -> None:
    assert mirror.of(build_store(tmp_path, ARMS).paths.root) is None
    assert not mirror.is_url(tmp_path)
