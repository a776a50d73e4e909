"""Compaction changes no answer: not before, not while a store grows, and not where a copy is damaged or outdated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from orchestrator.chunks import ChunkId
from orchestrator.commands import compact as compact_command
from orchestrator.store import aggregates, compact, listing
from orchestrator.store.reader import SCALARS, Reader
from orchestrator.store.tests.stores import Arm, build_store, commit_block
from orchestrator.store.writer import Store

FULL = Arm("full", ("1111111110", "0111111110"))
RANDOM = Arm("random", "110n1t11e1")
MEMORY = ("row_id", "verdict", "grader", "n_output", "events", "gpu", "keep", "overflow", "finished_at")


def age(store: Store) -> None:
    """Let every folder have changed a minute ago, so that it counts as settled."""
    for folder, modified in listing.folders(store.paths).items():
        os.utime(folder.path, ns=(modified, modified - 60 * 10**9))


def answers(reader: Reader) -> list[pd.DataFrame]:
    cells = [RANDOM.cell.cell_id, FULL.cell.cell_id]
    return [
        reader.cells(), reader.rows(MEMORY), reader.rows(SCALARS), aggregates.problem_sums(reader, cells),
        aggregates.arm_means(reader, cells), aggregates.ages(reader, cells), aggregates.origins(reader),
    ]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = build_store(tmp_path / "s", [FULL, RANDOM])
    age(made)
    return made


def test_a_compacted_store_answers_the_same(store: Store) -> None:
    before = answers(Reader(store.paths.root))
    assert Reader(store.paths.root).compact() == 4
    for old, new in zip(before, answers(Reader(store.paths.root)), strict=True):
        pd.testing.assert_frame_equal(old, new)
    assert Reader(store.paths.root).compact() == 0


def test_copies_are_what_is_read(store: Store) -> None:
    Reader(store.paths.root).compact()
    modified = listing.folders(store.paths)
    for folder in modified:
        for path in listing.chunks(folder).values():
            path.write_bytes(b"unreadable, but nobody looks")
        os.utime(folder.path, ns=(modified[folder], modified[folder]))
    reader = Reader(store.paths.root)
    assert (len(reader.rows(["row_id"])), reader.skipped) == (30, ())


def test_a_store_that_grew_or_shrank_since_is_read_as_it_is(store: Store) -> None:
    Reader(store.paths.root).compact()
    commit_block(store, RANDOM.cell, ChunkId(RANDOM.cell.cell_id, 1, 0), "11111111")
    store.paths.generation(ChunkId(FULL.cell.cell_id, 0, 1)).unlink()
    rows = Reader(store.paths.root).rows(["policy", "sample", "verdict"])
    assert rows.groupby(["policy", "sample"], observed=True).size().to_dict() == {
        ("full", 0): 8, ("full", 1): 10, ("random", 0): 10, ("random", 1): 8,
    }  # fmt: skip
    assert rows["verdict"].notna().all()


@pytest.mark.parametrize("keep", [0, 60, 5000, -4096])
def test_a_damaged_copy_costs_nothing_but_time(store: Store, keep: int) -> None:
    Reader(store.paths.root).compact()
    copy = compact.place(store.paths)
    data = copy.read_bytes()
    copy.write_bytes(data[:keep] + bytes(min(2000, len(data) - keep)) if keep >= 0 else data[:keep])
    assert len(Reader(store.paths.root).rows(["row_id"])) == 30


def test_a_cell_that_was_deleted_since_is_gone(store: Store) -> None:
    Reader(store.paths.root).compact()
    for folder in listing.folders(store.paths):
        if folder.cell_id == FULL.cell.cell_id:
            shutil.rmtree(folder.path)
    reader = Reader(store.paths.root)
    assert reader.cells()["policy"].tolist() == ["random"]
    assert reader.rows(["grader"])["grader"].notna().all()


def test_a_copy_grows_with_its_store(store: Store) -> None:
    Reader(store.paths.root).compact()
    commit_block(store, RANDOM.cell, ChunkId(RANDOM.cell.cell_id, 1, 0), "11111111")
    age(store)
    assert Reader(store.paths.root).compact() > 0
    before = answers(Reader(store.paths.root))
    shutil.rmtree(store.paths.root / "compact")
    for old, new in zip(before, answers(Reader(store.paths.root)), strict=True):
        pd.testing.assert_frame_equal(old, new)


def test_folders_that_just_changed_or_hold_bad_files_wait(tmp_path: Path) -> None:
    made = build_store(tmp_path / "s", [FULL])
    assert Reader(made.paths.root).compact() == 0
    path = made.paths.generation(ChunkId(FULL.cell.cell_id, 0, 0))
    path.write_bytes(b"torn")
    age(made)
    reader = Reader(made.paths.root)
    assert (reader.compact(), len(reader.skipped)) == (1, 1)


def test_the_command_says_what_it_did(store: Store) -> None:
    done = CliRunner().invoke(compact_command.command, [str(store.paths.root)])
    assert "4 folders compacted" in done.output
    shutil.rmtree(store.paths.root / "compact")
    assert len(Reader(store.paths.root).rows(["row_id"])) == 30


def test_aggregates_by_hand(store: Store) -> None:
    reader = Reader(store.paths.root)
    sums = aggregates.problem_sums(reader, [FULL.cell.cell_id]).set_index("problem_id")
    assert tuple(sums.loc["p000", ["counts", "right", "length"]]) == (2, 1, 1040.0)
    assert aggregates.problem_sums(reader, [FULL.cell.cell_id], 1)["counts"].sum() == 10
    arm = aggregates.arm_means(reader, [RANDOM.cell.cell_id]).iloc[0]
    # 110n1t11e1: one wrong, one without answer, one truncated (1500 tokens), one error
    assert (arm["wrong"], arm["no_answer"], arm["truncated"], arm["error"]) == (0.1, 0.1, 0.1, 0.1)
    assert arm["output_tokens"] == pytest.approx((sum(range(1000, 1010)) - 1005 + 1500) / 10)
    assert (arm["events"], arm["prompt_kept_min"], arm["cached_peak"]) == (44.5, 0.5, 280)
    lengths = aggregates.lengths(reader, [FULL.cell.cell_id]).iloc[0]
    assert (lengths["rows"], lengths["median"]) == (20, 1004.5)
    assert pd.isna(lengths["compression"])
    grid = aggregates.outcomes(reader, [RANDOM.cell.cell_id]).set_index("problem_id")
    assert tuple(grid.loc["p008", ["samples", "graded", "error"]]) == (1, 0, 1)
    assert aggregates.samples(reader, [FULL.cell.cell_id], "p000") == [0, 1]
    kept = aggregates.ages(reader, [RANDOM.cell.cell_id]).iloc[0]["kept"]
    assert list(kept) == [10 * place for place in range(32)]
    assert aggregates.cached_lengths(reader, [FULL.cell.cell_id]).empty
    assert len(aggregates.spread_rows(reader, RANDOM.cell.cell_id, 5)) == 5
