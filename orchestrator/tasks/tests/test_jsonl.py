"""A user's own problems: names by content, growth by appending, every bad line refused with its number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.tasks import registry
from orchestrator.tasks.base import Verdict
from orchestrator.tasks.jsonl import Jsonl

ITEMS: list[dict[str, Any]] = [{"problem": f"{n} + {n}?", "answer": 2 * n, "topic": "sums"} for n in range(10)]


def write(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(item) for item in items) + "\n\n", encoding="utf-8")
    return path


def load(path: Path, **options: Any) -> Jsonl:
    task = registry.get("jsonl", path=str(path), **options)
    assert isinstance(task, Jsonl)
    return task


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "sums.jsonl", ITEMS)


def test_problems_keep_the_order_of_the_file(file: Path) -> None:
    task = load(file, instruction="Answer with a number.")
    problems = task.problems()
    assert [problem.gold for problem in problems] == [str(2 * n) for n in range(10)]
    assert problems[3].messages == ({"role": "user", "content": "3 + 3?\nAnswer with a number."},)
    assert (task.size, len(task.problems(4)), task.revision) == (10, 4, "file-sums")


def test_the_id_is_the_content_without_the_answer(tmp_path: Path, file: Path) -> None:
    ids = [problem.problem_id for problem in load(file).problems()]
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)
    mended = write(tmp_path / "mended.jsonl", [{**item, "answer": 7} for item in ITEMS])
    assert [problem.problem_id for problem in load(mended).problems()] == ids
    reordered = write(tmp_path / "keys.jsonl", [dict(reversed(item.items())) for item in ITEMS])
    assert [problem.problem_id for problem in load(reordered).problems()] == ids
    changed = write(tmp_path / "changed.jsonl", [{**item, "topic": "doubles"} for item in ITEMS])
    assert not set(ids) & {problem.problem_id for problem in load(changed).problems()}


def test_appending_is_growing(file: Path) -> None:
    before = load(file)
    stored = {index: problem.problem_id for index, problem in enumerate(before.problems())}
    with file.open("a") as stream:
        stream.write('{"problem": "new?", "answer": "yes"}\n')
    after = load(file)
    after.refuse_changes(stored)
    assert (before.revision, before.prompt_hash) == (after.revision, after.prompt_hash)
    assert after.size == 11


def test_a_changed_earlier_line_is_refused_with_its_number(file: Path) -> None:
    stored = {index: problem.problem_id for index, problem in enumerate(load(file).problems())}
    write(file, [*ITEMS[:6], {**ITEMS[6], "problem": "other?"}, *ITEMS[7:]])
    with pytest.raises(UserError, match=r"line 7 of .* has changed"):
        load(file).refuse_changes(stored)
    write(file, ITEMS[:9])
    with pytest.raises(UserError, match=r"problem 10 of .* is gone"):
        load(file).refuse_changes(stored)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"problem": "a", "answer": 1}', "{oops"], "line 2 is not JSON"),
        (['["a"]'], "line 1 holds a list"),
        (['{"problm": "a", "answer": 1}'], r"line 1 has no field 'problem'.*Did you mean 'problm'"),
        (['{"problem": "a"}'], "line 1 has no field 'answer'"),
        (['{"problem": " ", "answer": 1}'], "line 1: field 'problem' is"),
        (['{"problem": "a", "answer": true}'], "line 1: field 'answer' is true"),
        (
            ['{"problem": "a", "answer": 1}', "", '{"problem": "a", "answer": 2}'],
            "line 3 repeats the problem of line 1",
        ),
        ([], "holds no problem"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        load(path).problems()


def test_a_missing_file_and_an_unknown_grader_are_refused(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        load(tmp_path / "none.jsonl").problems()
    with pytest.raises(UserError, match=r"grader 'nummer' is unknown.*Did you mean 'number'"):
        load(file, grader="nummer")


def test_golds_that_the_grader_cannot_read_are_listed(tmp_path: Path) -> None:
    items = [{"problem": "a", "answer": "3"}, {"problem": "b", "answer": "three"}]
    path = write(tmp_path / "golds.jsonl", items)
    with pytest.raises(UserError, match="line 2: 'three'"):
        load(path, grader="number").problems()
    assert load(path).size == 2


def test_grades_by_the_named_rule(file: Path) -> None:
    exact, number = load(file), load(file, grader="number")
    problem = exact.problems()[5]
    assert exact.grade(problem, "10", "stop").verdict is Verdict.CORRECT
    assert exact.grade(problem, "it is 10", "stop").verdict is Verdict.WRONG
    assert number.grade(problem, "it is 10.0", "stop").verdict is Verdict.CORRECT
