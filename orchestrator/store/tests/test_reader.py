"""The reader over hand-computed stores, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator.chunks import ChunkId
from orchestrator.errors import UserError
from orchestrator.store.paths import SIDE_JUDGES, GraderKey
from orchestrator.store.reader import COLUMNS, Reader
from orchestrator.store.rows import grade_row
from orchestrator.store.tests.stores import START, Arm, build_store, commit_block, make_grade, make_work
from orchestrator.store.writer import Store
from orchestrator.tasks.base import Verdict

FULL = Arm("full", "1111111110")
RANDOM = Arm("random", "110n1t11e1")


def test_rows_join_their_grades(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM])
    rows = Reader(tmp_path / "s").rows(["policy", "problem_index", "verdict", "sample_seed", "keep"])
    assert len(rows) == 20
    random = rows[rows["policy"] == "random"]
    assert list(random["verdict"]) == [
        *("correct", "correct", "wrong", "no_answer", "correct", "truncated", "correct", "correct", "error", "correct")
    ]
    assert list(random["sample_seed"]) == [2**64 - 1 - index for index in range(10)]
    assert set(random["keep"]) == {264}
    assert rows[rows["policy"] == "full"]["keep"].isna().all()


def test_cells_count_rows_problems_and_grades(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, Arm("random", ("1u", "11", "0X"))])
    cells = Reader(tmp_path / "s").cells().set_index("policy")
    assert tuple(cells.loc["random", ["rows", "problems", "graded", "invalid"]]) == (6, 2, 5, 1)
    assert tuple(cells.loc["full", ["rows", "problems", "graded", "invalid"]]) == (10, 10, 10, 0)


def test_text_is_read_only_when_asked_for(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM])
    reader = Reader(tmp_path / "s")
    row_id = f"{RANDOM.cell.cell_id}/p009/0"
    assert reader.transcript(row_id) == "<think>9+1\n</think>\\boxed{9}"
    assert list(reader.rows(["row_id", "text"], [RANDOM.cell.cell_id])["text"])[9].endswith("{9}")
    assert reader.rows(["text", "sample"], ["no such cell"]).empty
    row = reader.row(row_id)
    assert row["kept_crc"] == 2**64 - 10
    assert row["verdict"] == "correct"
    assert sum(row["age_histogram"]) == 31 * 16
    with pytest.raises(KeyError):
        reader.row("nothing")


def test_match_finds_row_ids_by_prefix(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM])
    reader = Reader(tmp_path / "s")
    assert reader.match(f"{RANDOM.cell.cell_id}/p003") == [f"{RANDOM.cell.cell_id}/p003/0"]
    assert len(reader.match(RANDOM.cell.cell_id[:4])) == 10
    assert reader.match("zz") == []


def test_unknown_column_is_refused_with_the_closest(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    with pytest.raises(UserError, match="Did you mean 'n_output'"):
        Reader(tmp_path / "s").rows(["n_outputs"])


def test_latest_grade_wins_and_older_ones_stay(tmp_path: Path) -> None:
    store = build_store(tmp_path / "s", [Arm("random", "00")])
    reader = Reader(tmp_path / "s")
    before = reader.generation_key
    cell = Arm("random", "00").cell
    rows = [reader.row(row_id) for row_id in reader.match(cell.cell_id)]
    newer = GraderKey("reasoner", 2)
    store.commit_grades(
        newer, ChunkId(cell.cell_id, 0, 0), [grade_row(row, newer, make_grade(Verdict.CORRECT), START) for row in rows]
    )
    assert reader.refresh() != before
    assert list(reader.rows(["verdict", "grader_version"]).itertuples(index=False)) == [("correct", 2)] * 2


def test_refresh_takes_in_new_and_forgets_deleted_files(tmp_path: Path) -> None:
    store = build_store(tmp_path / "s", [RANDOM])
    reader = Reader(tmp_path / "s")
    key = reader.generation_key
    assert reader.refresh() == key
    commit_block(store, FULL.cell, ChunkId(FULL.cell.cell_id, 0, 0), FULL.words[0])
    assert reader.refresh() != key
    assert len(reader.rows(["row_id"])) == 18
    store.paths.generation(ChunkId(RANDOM.cell.cell_id, 0, 0)).unlink()
    reader.refresh()
    assert len(reader.rows(["row_id"])) == 10


@pytest.mark.parametrize("damage", ["torn", "empty", "garbage", "middle", "foreign"])
def test_a_damaged_file_is_skipped_named_and_counted(tmp_path: Path, damage: str) -> None:
    store = build_store(tmp_path / "s", [FULL, RANDOM])
    path = store.paths.generation(ChunkId(RANDOM.cell.cell_id, 0, 0))
    data = path.read_bytes()
    if damage == "foreign":
        pq.write_table(pa.table({"row_id": ["a"]}), path)
    else:
        middle = data[:200] + bytes(len(data) // 2) + data[200 + len(data) // 2 :]
        path.write_bytes({"torn": data[:-100], "empty": b"", "garbage": b"PAR1" * 99, "middle": middle}[damage])
    reader = Reader(tmp_path / "s")
    assert [skipped.path for skipped in reader.skipped] == [path]
    assert reader.skipped[0].reason
    assert len(reader.rows(["row_id", "text"])) == len(reader.rows(["row_id"])) == 12
    path.write_bytes(data)
    reader.refresh()
    assert reader.skipped == ()
    assert len(reader.rows(["row_id"])) == 20


def test_drafts_and_foreign_names_are_not_rows(tmp_path: Path) -> None:
    store = build_store(tmp_path / "s", [FULL])
    directory = store.paths.generations / FULL.cell.cell_id
    (directory / "s0000-b00000.parquet.tmp").write_bytes(b"half")
    (directory / "notes.parquet").write_bytes(b"half")
    (store.paths.generations / "README").write_text("hello")
    reader = Reader(tmp_path / "s")
    assert (len(reader.rows(["row_id"])), reader.skipped) == (10, ())


def test_an_empty_store_has_empty_frames(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    reader = Reader(tmp_path / "s")
    assert tuple(reader.rows().columns) == tuple(n for n in COLUMNS if n not in ("text", "age_histogram", "versions"))
    assert (len(reader.cells()), len(reader.plan()), reader.campaigns(), reader.versions()) == (0, 0, (), [])


def test_plan_of_several_campaigns_takes_the_largest_numbers(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM], campaign="small")
    build_store(tmp_path / "s", [RANDOM, FULL], campaign="large", planned=(104, 4))
    reader = Reader(tmp_path / "s")
    plan = reader.plan().set_index("cell_id")
    assert tuple(plan.loc[RANDOM.cell.cell_id, ["n_problems", "samples_max"]]) == (104, 4)
    assert list(reader.plan("small")["cell_id"]) == [RANDOM.cell.cell_id]
    assert [campaign.campaign_id for campaign in reader.campaigns()] == ["large", "small"]


def test_versions_are_distinct(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM])
    assert Reader(tmp_path / "s").versions() == ['{"evictbench":"0.1.0","torch":"2.13.0","vllm":"0.32.0"}']


def test_make_work_names_the_problems_of_its_block() -> None:
    work = make_work(FULL.cell, ChunkId(FULL.cell.cell_id, 0, 1), 10)
    assert [row.problem_id for row in work.rows] == ["p008", "p009"]


def test_a_judge_that_stands_beside_never_replaces_the_one_that_counts(tmp_path: Path) -> None:
    store = build_store(tmp_path / "s", [Arm("full", "1100")])
    cell = Arm("full", "1100").cell
    chunk = ChunkId(cell.cell_id, 0, 0)
    keys = Reader(store.paths.root).rows(["row_id", "cell_id", "problem_id", "sample"]).to_dict("records")
    rows = [{str(name): value for name, value in row.items()} for row in keys]
    side = GraderKey("reasoner", 9, SIDE_JUDGES[0])
    store.commit_grades(side, chunk, [grade_row(row, side, make_grade(Verdict.WRONG), START) for row in rows])
    for columns in (["verdict", "judge"], ["verdict", "judge", "text"]):
        frame = Reader(store.paths.root).rows(columns)
        assert list(frame["verdict"]) == ["correct", "correct", "wrong", "wrong"]
        assert set(frame["judge"]) == {"none"}
    newer = GraderKey("reasoner", 2)
    store.commit_grades(newer, chunk, [grade_row(row, newer, make_grade(Verdict.CORRECT), START) for row in rows])
    assert set(Reader(store.paths.root).rows(["verdict"])["verdict"]) == {"correct"}


def test_files_from_before_a_column_was_added_have_nulls_there(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM])
    for table, column in (("generations", "nan_scores"), ("grades", "lenient")):
        for path in (tmp_path / "s" / table).rglob("*.parquet"):
            pq.write_table(pq.read_table(path, partitioning=None).drop_columns([column]), path)
    reader = Reader(tmp_path / "s")
    assert not reader.skipped
    rows = reader.rows(["row_id", "nan_scores", "lenient", "extracted", "verdict"])
    assert len(rows) == 10
    assert rows["nan_scores"].isna().all()
    assert rows["lenient"].isna().all()
    assert reader.row(rows["row_id"].iloc[0])["nan_scores"] is None
