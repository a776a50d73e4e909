"""Merging stores and pruning them: rows once, grades only of their own rows, nothing half gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.store import upkeep
from orchestrator.store.paths import StorePaths, chunk_files
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import PROVENANCE, Arm, build_store


def rows(paths: StorePaths) -> list[str]:
    found = [pq.read_table(path)["row_id"].to_pylist() for _, path in chunk_files(paths.generations)]
    return sorted(row for chunk in found for row in chunk)


def campaigns(store: Path) -> list[str]:
    return [campaign.campaign_id for campaign in Reader(store).campaigns()]


def grade_files(paths: StorePaths) -> int:
    return len(list(paths.grades.rglob("*.parquet")))


def test_a_merge_brings_what_is_missing_once_and_a_second_one_nothing(tmp_path: Path) -> None:
    one = build_store(tmp_path / "one", [Arm("full", "1" * 8), Arm("random", "1" * 8)], campaign="one").paths
    two = build_store(tmp_path / "two", [Arm("random", "1" * 8), Arm("recent", "0" * 8)], campaign="two").paths
    before = rows(one)
    done = upkeep.merge(two, one)
    assert (done.chunks, done.kept, done.campaigns) == (1, 1, 1)
    assert rows(one) == sorted({*before, *rows(two)})
    assert upkeep.merge(two, one) == upkeep.Merged(0, 2, 0, done.foreign, 0)
    assert campaigns(one.root) == ["one", "two"]


def test_grades_of_other_rows_stay_behind(tmp_path: Path) -> None:
    one = build_store(tmp_path / "one", [Arm("random", "1" * 8)]).paths
    other = replace(PROVENANCE, engine_id="another")
    two = build_store(tmp_path / "two", [Arm("random", "0" * 8)], provenance=other).paths
    for path in one.grades.rglob("*.parquet"):
        path.unlink()
    done = upkeep.merge(two, one)
    assert (done.kept, done.grades, done.foreign) == (1, 0, 1)
    assert grade_files(one) == 0


def test_pruning_a_campaign_keeps_cells_that_another_plans(tmp_path: Path) -> None:
    build_store(tmp_path, [Arm("full", "1" * 8), Arm("random", "1" * 8)], campaign="one")
    paths = build_store(tmp_path, [Arm("random", "1" * 8)], campaign="two").paths
    listed = CliRunner().invoke(main, ["prune", str(tmp_path), "--campaign", "one"])
    assert listed.exit_code == 0, listed.output
    assert "1 cells stay for other campaigns" in listed.output
    assert len(rows(paths)) == 16
    assert CliRunner().invoke(main, ["prune", str(tmp_path), "--campaign", "one", "--yes"]).exit_code == 0
    assert len(rows(paths)) == 8
    assert grade_files(paths) == 1
    assert campaigns(tmp_path) == ["two"]
    assert list(paths.temporary.iterdir()) == []


def test_a_cell_is_pruned_by_the_beginning_of_its_id_and_an_unclear_one_is_refused(tmp_path: Path) -> None:
    paths = build_store(tmp_path, [Arm("full", "1" * 8), Arm("random", "1" * 8)]).paths
    first, second = sorted(path.name for path in paths.generations.iterdir())
    result = CliRunner().invoke(main, ["prune", str(tmp_path), "--cell", first[:-1], "--yes"])
    assert result.exit_code == 0, result.output
    assert [path.name for path in paths.generations.iterdir()] == [second]
    result = CliRunner().invoke(main, ["prune", str(tmp_path), "--cell", "", "--yes"])
    assert result.exit_code == 0 or "cells of" in result.output
    result = CliRunner().invoke(main, ["prune", str(tmp_path), "--cell", "zz", "--yes"])
    assert (result.exit_code, "begins no cell" in result.output) == (2, True)


@pytest.mark.parametrize("options", [[], ["--campaign", "demo", "--cell", "x"]])
def test_prune_needs_exactly_one_target(tmp_path: Path, options: list[str]) -> None:
    build_store(tmp_path, [Arm("full", "1" * 8)])
    assert CliRunner().invoke(main, ["prune", str(tmp_path), *options, "--yes"]).exit_code == 2


def test_merging_a_directory_that_is_no_store_or_itself_is_refused(tmp_path: Path) -> None:
    build_store(tmp_path / "one", [Arm("full", "1" * 8)])
    result = CliRunner().invoke(main, ["merge", str(tmp_path), "--into", str(tmp_path / "new")])
    assert (result.exit_code, "is no store" in result.output) == (2, True)
    assert not (tmp_path / "new").exists()
    result = CliRunner().invoke(main, ["merge", str(tmp_path / "one"), "--into", str(tmp_path / "one")])
    assert (result.exit_code, "into itself" in result.output) == (2, True)
