"""Public problem sets: read from files, checked, named by content; the packaged mini sets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.grading import _grade_row
from orchestrator.tasks import registry
from orchestrator.tasks.base import Verdict
from orchestrator.tasks.benchmark import Benchmark

BENCHMARKS = [
    name
    for name in registry.names()
    if issubclass(registry._TASKS[name], Benchmark) and registry.grader(name) != "program"  # test_code.py runs those
]
ROWS = [{"problem": f"What is {n}+{n}?", "answer": str(2 * n), "unique_id": n} for n in range(1, 5)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_mini_sets_answer_themselves(name: str) -> None:
    task = registry.get(name, mini=True)
    problems = task.problems()
    assert len(problems) >= 20
    assert task.revision.startswith("mini-")
    for problem in problems:
        boxed = f"thus \\boxed{{{problem.gold}}}"
        assert task.grade(problem, boxed, "stop").verdict is Verdict.CORRECT, problem
        assert task.grade(problem, "thus \\boxed{-987654321}", "stop").verdict is Verdict.WRONG, problem


def test_a_file_is_enough(tmp_path: Path) -> None:
    task = registry.get("math500", data_file=write(tmp_path / "m.jsonl", ROWS))
    problem = task.problems(2)[1]
    assert (problem.gold, task.size) == ("4", 4)
    assert problem.messages[0]["content"] == (
        "What is 2+2?\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    more = registry.get("math500", data_file=write(tmp_path / "n.jsonl", ROWS[:3]))
    assert more.revision != task.revision
    assert [p.problem_id for p in more.problems()] == [p.problem_id for p in task.problems(3)]


def test_formats_agree(tmp_path: Path) -> None:
    rows = [{key: str(value) for key, value in row.items()} for row in ROWS]
    (tmp_path / "m.json").write_text(json.dumps(rows))
    header = ",".join(rows[0])
    (tmp_path / "m.csv").write_text("\n".join([header, *(",".join(row.values()) for row in rows)]))
    revisions = {
        registry.get("math500", data_file=path).revision
        for path in (write(tmp_path / "m.jsonl", rows), str(tmp_path / "m.json"), str(tmp_path / "m.csv"))
    }
    assert len(revisions) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no problem"),
        ([{"problm": "a", "answer": "1"}], r"row 1 has no field 'problem'.*Did you mean 'problm'"),
        ([{"problem": "", "answer": "1"}], "field 'problem' is empty"),
        ([ROWS[0], ROWS[1], ROWS[0]], "problem 3 repeats problem 1"),
        ([ROWS[0], {"problem": "x?", "answer": "1/2"}], "problem 2: '1/2'"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        registry.get("aime", data_file=write(tmp_path / "a.jsonl", rows)).problems()


def test_missing_data_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"hf auth login.*data_file: PATH.*mini: true"):
        registry.get("gpqa_diamond").problems()
    with pytest.raises(UserError, match="does not exist"):
        registry.get("aime", data_file=str(tmp_path / "none.jsonl")).problems()
    with pytest.raises(UserError, match="either data_file or mini"):
        registry.get("aime", data_file="x.jsonl", mini=True)


def test_a_changed_full_set_is_refused(tmp_path: Path) -> None:
    rows = [{"problem": f"{n}?", "answer": "1"} for n in range(500)]
    with pytest.raises(UserError, match="not the pinned ones"):
        registry.get("math500", data_file=write(tmp_path / "m.jsonl", rows)).problems()


def gpqa(n: int) -> dict[str, str]:
    wrong = {f"Incorrect Answer {i}": f"wrong {n}.{i}" for i in (1, 2, 3)}
    return {"Question": f"Question {n}?", "Correct Answer": f"right {n}", **wrong}


def test_gpqa_order_is_a_function_of_the_item(tmp_path: Path) -> None:
    rows = [gpqa(n) for n in range(40)]
    every = registry.get("gpqa_diamond", data_file=write(tmp_path / "g.jsonl", rows))
    some = registry.get("gpqa_diamond", data_file=write(tmp_path / "h.jsonl", rows[7:]))
    assert list(some.problems()) == list(every.problems())[7:]
    golds = {problem.gold for problem in every.problems()}
    assert golds == set("ABCD")
    problem = every.problems(1)[0]
    assert f"{problem.gold}) right 0" in problem.messages[0]["content"]


def test_gpqa_published_order_has_a_always_right(tmp_path: Path) -> None:
    path = write(tmp_path / "g.jsonl", [gpqa(n) for n in range(8)])
    published, keyed = (registry.get("gpqa_diamond", data_file=path, order=order) for order in ("published", "keyed"))
    assert {problem.gold for problem in published.problems()} == {"A"}
    assert published.prompt_hash != keyed.prompt_hash
    with pytest.raises(UserError, match="order 'random' is unknown"):
        registry.get("gpqa_diamond", order="random")


def test_gsm8k_reads_the_answer_behind_the_marks(tmp_path: Path) -> None:
    row = {"question": "Two dozen eggs?", "answer": "2*12 = <<2*12=24>>24\n#### 1,024"}
    task = registry.get("gsm8k", data_file=write(tmp_path / "g.jsonl", [row]))
    problem = task.problems()[0]
    assert problem.gold == "1,024"
    assert task.grade(problem, "so 1024 eggs", "stop").verdict is Verdict.CORRECT


def test_every_source_is_pinned() -> None:
    for name in registry.names():
        sources = getattr(registry._TASKS[name], "sources", ())
        assert all(re.fullmatch("[0-9a-f]{40}", source.revision) for source in sources), name
        assert all(re.fullmatch("(?:[0-9a-f]{64})?", source.sha256) for source in sources), name


def test_a_changed_file_of_the_hub_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    write(file, ROWS)
    asked: dict[str, Any] = {}

    def download(*_: str, **wanted: Any) -> str:
        asked.update(wanted)
        return str(file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(
        UserError, match=r"has SHA-256 .* but HuggingFaceH4/MATH-500 at 6e4ed1a2a79a has 35dc.*delete it"
    ):
        registry.get("math500").problems()
    assert asked["revision"] == "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
    monkeypatch.setattr("orchestrator.tasks.benchmark._checked", lambda task, source, path: path)
    monkeypatch.setattr(registry._TASKS["aime"], "sources", registry._TASKS["aime"].sources[:1])  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="the hub's files hold 4 problems, the pinned set 60"):
        registry.get("aime").problems()


@pytest.mark.parametrize("name", [*BENCHMARKS, "livecodebench", "reasoner_w"])
def test_a_generation_without_text_is_no_answer_and_no_crash(name: str) -> None:
    task = registry.get(name, **({"mini": True} if name != "reasoner_w" else {}))
    problem = task.problems(1)[0]
    assert task.grade(problem, "", "stop").verdict is Verdict.NO_ANSWER
    assert task.grade(problem, "", "length").verdict is Verdict.TRUNCATED
    assert task.grade(problem, "x", "abort").verdict is Verdict.ERROR
    none = _grade_row(task, problem, {"text": None, "finish_reason": "stop"})
    assert (none.verdict, none.method) == (Verdict.ERROR, "generation without text")
    lost = _grade_row(task, None, {"text": "x", "finish_reason": "stop"})
    assert lost.verdict is Verdict.UNGRADED
