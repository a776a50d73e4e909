"""`evictbench report` on stores with known numbers: text, Markdown, JSON, and every unhappy store."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from orchestrator.analysis import Question, Selection
from orchestrator.chunks import ChunkId
from orchestrator.cli import main
from orchestrator.report import build
from orchestrator.report_formats import Fitted
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import PROVENANCE, Arm, build_store
from orchestrator.store.writer import Store

FULL = Arm("full", "1" * 104)
RANDOM = Arm("random", "1" * 102 + "0n")
BARE = Arm("random", "0" * 100 + "1111", protection="none")
CLOSE = Arm("recent", "0" + "1" * 103)
WORSE = Arm("random_inplace", "1" * 80 + "0" * 15 + "t" * 9)


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def line(text: str, *words: str) -> str:
    """The first line that holds all words."""
    return next(line for line in text.splitlines() if all(word in line for word in words))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "s"
    build_store(path, [FULL, RANDOM, BARE, CLOSE, WORSE])
    return path


def test_text_shows_accuracy_differences_tests_and_eviction(store: Path) -> None:
    done = report(store)
    assert done.exit_code == 0, done.output
    text = done.output
    assert "520 rows of 520 planned in 5 arms" in text
    assert "evictbench 0.1.0, torch 2.13.0, vllm 0.32.0" in text
    accuracy = line(text, "random_inplace", "76.9")
    assert [word in accuracy for word in ("14 %", "9 %")] == [True, True]
    assert "keep 264, interval 16, n 104×1" in text
    assert "▼ worse" in line(text, "random  ", "none", "-94.2")
    assert "· unresolved (3 differ)" in line(text, "recent", "+1.0")
    assert "▼ worse" in line(text, "random_inplace", "-21.2")
    assert "detects" in text
    assert "Preemptions: none." in text
    assert "trained with random-eviction masks" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_number_is_cut_at_any_width(store: Path, width: int) -> None:
    reader = Reader(store)
    found = build(reader, Selection(), Question())
    for sheet in found.sheets:
        console = Console(width=width, file=StringIO())
        with console.capture() as capture:
            console.print(Fitted(sheet))
        words = capture.get().replace("\n", " ").split()
        numbers = {word for row in sheet.rows for cell in row[2:] for word in cell.split() if word[-1].isdigit()}
        assert numbers <= set(words), sheet.title
        assert max(len(line) for line in capture.get().splitlines()[1:]) <= width


def test_a_report_never_ranks_or_concludes(store: Path) -> None:
    text = report(store, "--format", "markdown").output.lower()
    assert not any(word in text for word in ("best", "winner", "significant", "matches random", "outperform"))


def test_markdown_is_tables_and_notes(store: Path) -> None:
    text = report(store, "--format", "markdown").output
    assert text.startswith("# All jobs\n")
    row = line(text, "| random_inplace", "worse")
    assert row.startswith("| random_inplace | prompt | -21.2 | [")
    head = line(text, "| policy | protects | points |")
    assert row.count("|") == head.count("|")
    assert "\n* Differences are points" in text


def test_json_holds_fractions_and_nulls(store: Path) -> None:
    found = json.loads(report(store, "--format", "json").output)
    assert found["rows"] == 520
    arms = {(arm["policy"], arm["protection"]): arm for arm in found["arms"]}
    assert arms["random", "prompt"]["accuracy"] == pytest.approx(102 / 104)
    assert arms["full", None]["keep"] is None
    assert arms["full", None]["events"] is None
    differences = {(row["policy"], row["protection"]): row for row in found["differences"]}
    assert differences["random_inplace", "prompt"]["difference"] == pytest.approx(-22 / 104)
    assert differences["random_inplace", "prompt"]["verdict"] == "worse"
    assert found["versions"] == [{"evictbench": "0.1.0", "torch": "2.13.0", "vllm": "0.32.0"}]


def test_filters_reference_and_equivalence(store: Path) -> None:
    only = json.loads(report(store, "--format", "json", "--only", "policy=recent").output)
    assert [arm["policy"] for arm in only["arms"]] == ["recent"]
    other = json.loads(report(store, "--format", "json", "--reference", "recent").output)
    assert {row["reference_policy"] for row in other["differences"]} == {"recent"}
    assert "90 % interval lies within 2.0 points" in report(store, "--equivalence").output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reference", "randm"], "Did you mean 'random'"),
        (["--only", "policy=recen"], "Did you mean 'recent'"),
        (["--only", "polcy=recent"], "Did you mean 'policy'"),
        (["--only", "policy"], "write KIND=NAME"),
    ],
)
def test_mistakes_are_one_paragraph_and_exit_2(store: Path, arguments: list[str], message: str) -> None:
    done = report(store, *arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert "Traceback" not in done.output


def test_a_path_that_is_nothing_a_missing_store_and_another_version(tmp_path: Path) -> None:
    assert "neither a store directory nor a job file" in report(tmp_path / "nothing").output
    (tmp_path / "empty").mkdir()
    missing = report(tmp_path / "empty")
    assert (missing.exit_code, "no store.json" in missing.output) == (2, True)
    Store.open(tmp_path / "s").paths.marker.write_text('{"schema_version": 9, "block": 8}')
    assert "schema version 9" in report(tmp_path / "s").output


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    done = report(tmp_path / "s")
    assert done.exit_code == 0
    assert "No rows and no plan yet: run a job first" in done.output
    assert json.loads(report(tmp_path / "s", "--format", "json").output)["arms"] == []


def test_a_planned_job_without_rows(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [replace(RANDOM, outcomes=""), replace(CLOSE, outcomes="")], planned=(104, 1))
    done = report(tmp_path / "s")
    assert done.exit_code == 0
    assert "nothing is committed" in done.output
    assert "n 0×0" in done.output
    assert line(done.output, "recent", "prompt").rstrip().endswith("0 %")


def test_a_half_finished_store_is_provisional(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM, replace(WORSE, outcomes=WORSE.words[0][:96])], planned=(104, 1))
    text = report(tmp_path / "s").output
    assert "92 %" in line(text, "random_inplace", "96×1")
    assert "worse, provisional" in text
    assert "Unfinished: 1 of 2 arms" in text


def test_damage_failed_attestation_and_simulation_are_named(tmp_path: Path) -> None:
    arms = [RANDOM, replace(CLOSE, outcomes="X" * 4 + "1" * 100)]
    store = build_store(tmp_path / "s", arms)
    build_store(tmp_path / "s", [BARE], campaign="fake", provenance=replace(PROVENANCE, kind="simulated"))
    torn = store.paths.generation(ChunkId(RANDOM.cell.cell_id, 0, 12))
    torn.write_bytes(torn.read_bytes()[:-40])
    done = report(tmp_path / "s")
    text = " ".join(done.output.split())
    assert done.exit_code == 0, done.output
    assert "Skipped unreadable files (1)" in text
    assert torn.name in text
    assert "INVALID: attestation failed in 4 rows of reasoner reasoner_w recent" in text
    assert "· unresolved (invalid)" in text
    assert "Left out: 1 cells whose rows a simulated engine made" in text
    assert "-94.2" not in text


def test_several_budgets_get_a_column(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM, CLOSE, replace(RANDOM, keep=128), replace(CLOSE, keep=128)])
    text = report(tmp_path / "s").output
    assert line(text, "full", "128/16", "+1.9")
    assert line(text, "recent", "264/16", "+1.0")


def test_a_job_file_stands_for_its_store_and_campaign(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: demo\n"
        "models: [{path: embedded:reasoner, dtype: bfloat16, max_model_len: 2048}]\n"
        "tasks: [{name: reasoner_w, limit: 104}]\n"
        "arms: {policies: [full, random, recent], keep: 264, interval: 16}\n"
        "sampling: {temperature: 0, max_tokens: 1500}\n"
        "analysis: {reference: recent, margin_points: 5}\n"
        f"execution: {{store: {tmp_path / 's'}}}\n"
    )
    missing = report(job)
    assert (missing.exit_code, "has no store yet" in missing.output) == (2, True), missing.output
    build_store(tmp_path / "s", [FULL], campaign="other")
    other = report(job)
    assert (other.exit_code, "'demo' was never run into" in other.output, "other" in other.output) == (2, True, True)
    build_store(tmp_path / "s", [RANDOM, CLOSE], campaign="demo")
    found = json.loads(report(job, "--format", "json").output)
    assert [arm["policy"] for arm in found["arms"]] == ["random", "recent"]
    assert [row["reference_policy"] for row in found["differences"]] == ["recent"]
    assert "lies within 5.0 points" in " ".join(report(job, "--equivalence").output.split())
