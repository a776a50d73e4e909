"""Regrade: finds rows by their task, commits each chunk's grades once, goes on after a kill, refuses other data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from orchestrator import regrading, report
from orchestrator.analysis import Question, Selection
from orchestrator.commands.regrade import command
from orchestrator.errors import UserError
from orchestrator.grading import GradeWork, grade
from orchestrator.regrading import Wish, prepare
from orchestrator.store.reader import Reader
from orchestrator.tasks.base import Problem
from orchestrator.tasks.graders import integers
from orchestrator.tests.answered import answer_all, write_job

MINI = "{name: aime, mini: true}"


def right_on_even_samples(problem: Problem, sample: int) -> str:
    return f"thus \\boxed{{{problem.gold if sample % 2 == 0 else '-987654321'}}}"


def regrade(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in (*arguments, "--backend", "local")])


def test_every_row_is_graded_once_and_a_second_run_has_nothing_to_do(tmp_path: Path) -> None:
    job = write_job(tmp_path, MINI, samples=2)
    answer_all(job, right_on_even_samples)
    first = regrade(job, "--task", "aime", "--grader-version", integers.VERSION)
    assert first.exit_code == 0, first.output
    assert "44/44 rows" in first.output
    rows = Reader(tmp_path / "store").rows(["sample", "verdict", "grader_version", "lenient"])
    assert {(row.sample, row.verdict) for row in rows.itertuples()} == {(0, "correct"), (1, "wrong")}
    assert (rows["verdict"] == rows["lenient"]).all()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "store" / "grades").rglob("*.parquet")}
    again = regrade(tmp_path / "store")
    assert "nothing to do" in again.output
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "store" / "grades").rglob("*.parquet")}


def test_a_newer_version_stands_beside_the_old_and_is_the_one_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(tmp_path, MINI)
    prepared = answer_all(job, right_on_even_samples)
    task = next(iter(prepared.plan.tasks.values()))
    monkeypatch.setattr(type(task), "grader_version", integers.VERSION - 1)
    monkeypatch.setattr(
        type(task), "grade_text", staticmethod(lambda gold, text, reason: integers.grade("7", text, reason))
    )
    work = prepare(job, Wish())
    for chunk in work.missing:
        problems = tuple(work.batches[0].problems[chunk.block * 8 : chunk.block * 8 + 8])
        assert not grade(GradeWork(str(tmp_path / "store"), work.batches[0].task, ((chunk, problems),))).error
    monkeypatch.undo()
    outcome = regrade(job)
    assert outcome.exit_code == 0, outcome.output
    assert "wrong -> correct" in outcome.output
    reader = Reader(tmp_path / "store")
    assert set(reader.rows(["verdict"])["verdict"]) == {"correct"}
    header = report.build(reader, Selection(), Question(reference="full")).header
    assert f"graded by integer v{integers.VERSION}" in header


def test_a_killed_regrade_goes_on(tmp_path: Path) -> None:
    job = write_job(tmp_path, "{name: aime, mini: true}", samples=8)
    answer_all(job, right_on_even_samples)
    started = [sys.executable, "-m", "orchestrator", "regrade", str(job), "--backend", "local"]
    process = subprocess.Popen(started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
    grades = tmp_path / "store" / "grades"
    deadline = time.monotonic() + 60
    while not (early := list(grades.rglob("s*.parquet"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert early
    assert len(prepare(job, Wish()).missing) < 24, "what was committed before the kill is lost"
    stamps = {path: path.stat().st_mtime_ns for path in grades.rglob("s*.parquet")}
    assert regrade(job).exit_code == 0
    rows = Reader(tmp_path / "store").rows(["row_id", "verdict"])
    assert (len(rows), int(rows["verdict"].notna().sum()), rows["row_id"].nunique()) == (176, 176, 176)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (Wish(tasks=("aimee",)), "no rows of task 'aimee'; its tasks: aime. Did you mean 'aime'"),
        (Wish(version=99), "--grader-version 99: this evictbench grades aime by 'integer' version"),
        (Wish(judge="oracle"), "judge 'oracle' is unknown"),
        (Wish(data_file=Path("x.jsonl")), "--data-file belongs to one task"),
    ],
)
def test_wishes_that_cannot_be_met(tmp_path: Path, wish: Wish, says: str) -> None:
    job = write_job(tmp_path, MINI)
    answer_all(job, right_on_even_samples)
    with pytest.raises(UserError, match=says):
        prepare(job, wish)


def test_other_problems_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "problems.jsonl"
    data.write_text("\n".join(f'{{"problem": "What is {n}+1?", "answer": "{n + 1}"}}' for n in range(8)))
    job = write_job(tmp_path, "{name: math500, data_file: problems.jsonl}")
    answer_all(job, right_on_even_samples)
    moved = data.rename(tmp_path / "moved.jsonl")
    with pytest.raises(UserError, match="does not exist"):
        prepare(tmp_path / "store", Wish())
    assert prepare(tmp_path / "store", Wish(tasks=("math500",), data_file=moved)).missing
    moved.write_text(moved.read_text().replace('"8"', '"9"'))
    with pytest.raises(UserError, match="but its data here is revision"):
        prepare(tmp_path / "store", Wish(tasks=("math500",), data_file=moved))


def test_a_mended_answer_key_is_graded_again_when_asked(tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    lines = [f'{{"problem": "What is {n}+1?", "answer": "{n + 1}"}}' for n in range(8)]
    data.write_text("\n".join([*lines[:7], lines[7].replace('"8"', '"9"')]))
    job = write_job(tmp_path, "{name: jsonl, path: mine.jsonl, grader: number}")
    answer_all(job, lambda problem, _: f"\\boxed{{{int(problem.messages[0]['content'].split('+')[0][8:]) + 1}}}")
    assert regrade(job).exit_code == 0
    assert list(Reader(tmp_path / "store").rows(["verdict"])["verdict"]) == ["correct"] * 7 + ["wrong"]
    data.write_text("\n".join(lines))
    assert "nothing to do" in regrade(job).output
    assert regrade(job, "--again").exit_code == 0
    assert set(Reader(tmp_path / "store").rows(["verdict"])["verdict"]) == {"correct"}


def test_the_meter_counts_and_foresees() -> None:
    meter = regrading.Meter(Console(), 1000, done=250, _started=0.0)
    assert meter.text(5.0) == "250/1,000 rows, 50 rows/s, 0:00:15 left"
