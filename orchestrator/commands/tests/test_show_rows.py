"""`evictbench show` and `evictbench rows`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.commands.show import printable
from orchestrator.store.reader import SCALARS
from orchestrator.store.tests.stores import Arm, build_store

RANDOM = Arm("random", "10t")
FULL = Arm("full", "111")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "s"
    build_store(path, [FULL, RANDOM])
    return path


def test_show_prints_facts_and_transcript_for_a_prefix(store: Path) -> None:
    done = run("show", f"{RANDOM.cell.cell_id}/p001", "--from", store)
    assert done.exit_code == 0, done.output
    words = [line.split(maxsplit=1) for line in done.output.splitlines()]
    facts = {pair[0]: pair[1].strip() for pair in words if len(pair) == 2}
    assert facts["row_id"] == f"{RANDOM.cell.cell_id}/p001/0"
    assert facts["verdict"] == "wrong"
    assert facts["kept_crc"] == str(2**64 - 2)
    assert facts["events"] == "41"
    assert done.output.rstrip().endswith("\\boxed{1}")


def test_show_lists_the_choices_of_an_ambiguous_id(store: Path) -> None:
    done = run("show", RANDOM.cell.cell_id, "--from", store)
    assert done.exit_code == 2
    assert all(f"{RANDOM.cell.cell_id}/p00{index}/0" in done.output for index in range(3))
    unknown = run("show", "zzz", "--from", store)
    assert (unknown.exit_code, "no row begins with 'zzz'" in unknown.output) == (2, True)


def test_show_as_json_holds_every_column(store: Path) -> None:
    found = json.loads(run("show", f"{RANDOM.cell.cell_id}/p002", "--from", store, "--format", "json").output)
    assert set(SCALARS) <= set(found)
    assert (found["verdict"], found["n_output"], found["text"]) == ("truncated", 1500, "<think>2+1\n</think>\\boxed{2}")
    hidden = run("show", f"{RANDOM.cell.cell_id}/p002", "--from", store, "--format", "json", "--no-text")
    assert "text" not in json.loads(hidden.output)


def test_a_generation_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2Jb\tc\nd\x07") == "a\\x1b[2Jb\tc\nd\\x07"


def test_rows_as_csv_hold_no_text_by_default(store: Path) -> None:
    done = run("rows", store)
    rows = list(csv.DictReader(io.StringIO(done.output)))
    assert len(rows) == 6
    assert tuple(rows[0]) == SCALARS
    seeds = {row["sample_seed"] for row in rows}
    assert seeds == {str(2**64 - 1 - index) for index in range(3)}
    assert [row["keep"] for row in rows if row["policy"] == "full"] == [""] * 3


def test_rows_select_columns_cells_and_text(store: Path) -> None:
    done = run(
        "rows", store, "--format", "jsonl", "--columns", "problem_id, sample_seed", "--text", "--only", "policy=random"
    )
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert [row["problem_id"] for row in rows] == ["p000", "p001", "p002"]
    assert rows[0] == {"problem_id": "p000", "sample_seed": 2**64 - 1, "text": "<think>0+1\n</think>\\boxed{0}"}


def test_rows_as_parquet_read_back(store: Path, tmp_path: Path) -> None:
    assert run("rows", store, "--format", "parquet", "-o", tmp_path / "r.parquet").exit_code == 0
    assert list(pd.read_parquet(tmp_path / "r.parquet")["sample_seed"])[:3] == [2**64 - 1 - index for index in range(3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "parquet"], "needs a file"),
        (["--columns", "verdct"], "Did you mean 'verdict'"),
        (["-o", "/nowhere/at/all.csv"], "cannot be written"),
    ],
)
def test_mistakes_exit_2(store: Path, arguments: list[str], message: str) -> None:
    done = run("rows", store, *arguments)
    assert (done.exit_code, message in done.output) == (2, True), done.output


def test_column_names_are_listed() -> None:
    assert "prompt_kept_min" in run("rows", "--list-columns").output.splitlines()
