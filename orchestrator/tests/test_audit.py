"""The audit against arithmetic by hand, and its words for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator import traces
from orchestrator.audit import audit, judge
from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.models import resolve
from orchestrator.traces import Trace


def write(file: Path, *rows: object) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def characters(text: str) -> list[int]:
    """One token a character: positions can be counted by eye."""
    return list(range(len(text)))


def test_only_facts_of_the_answer_that_are_stated_once_and_used_again_count(tmp_path: Path) -> None:
    answer = "x_1 = 4729; n is 12. Then 4729 is x_1, 4729 again; 555 once; 808 of the prompt 808."
    file = write(tmp_path / "t.jsonl", {"prompt": "about 808", "output": answer})
    (trace,) = traces.read(file, characters)
    assert (trace.prompt, trace.output, trace.stated) == (9, len(answer), 3)
    # 12 is too short to be a fact, 808 is in the prompt, and a third mention of 4729 finds it stated twice.
    first, second = answer.index("4729"), answer.index("4729", 12)
    assert trace.reuses == ((9 + first, 9 + second), (9 + 0, 9 + answer.index("x_1", 5)))


def test_a_keep_is_judged_by_the_length_algebra() -> None:
    # keep 40, interval 8, prompt 10: events before tokens 48, 56, 64, ...; a candidate survives one with 22 / 30.
    trace = Trace(10, 60, ((12, 47), (12, 48), (12, 64), (60, 65)), 4)
    found = judge([trace], 40, 8, heads=2)
    once, thrice = 22 / 30, (22 / 30) ** 3
    assert found.per_head == pytest.approx((1 + once + thrice + 1) / 4)
    assert found.in_any_head == pytest.approx((1 + (1 - (1 - once) ** 2) + (1 - (1 - thrice) ** 2) + 1) / 4)
    assert (found.exposed, found.unfit, found.never) == (0.5, 0.0, 0.0)
    cached = list(range(10, 48)) + [40 + i % 8 for i in range(22)]
    assert found.compression == pytest.approx(sum(range(10, 70)) / sum(cached))
    short = judge([Trace(40, 4, (), 0)], 40, 8, heads=2)
    assert (short.unfit, short.never, short.compression) == (1.0, 1.0, 1.0)


def test_the_suggestion_is_the_smallest_keep_that_satisfies_its_rule() -> None:
    found = audit([Trace(10, 600, ((30, 400),), 1)], [64], 8, heads=8)
    assert found.suggested is not None
    assert found.suggested.keep % 8 == 0
    assert found.suggested.in_any_head >= 0.95
    assert judge([Trace(10, 600, ((30, 400),), 1)], found.suggested.keep - 8, 8, heads=8).in_any_head < 0.95
    assert audit([Trace(10, 20, (), 0)], [64], 8, heads=8).suggested is None


def test_tokens_are_the_models_own(tmp_path: Path) -> None:
    file = write(
        tmp_path / "t.jsonl",
        {"messages": [{"role": "user", "content": "Wx57n10"}, {"role": "assistant", "content": "R00x57m57"}]},
    )
    (trace,) = traces.read(file, traces.tokenized(resolve("embedded:reasoner")))
    assert (trace.prompt, trace.output) == (7, 9)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no trace"),
        ("{]\n", "t.jsonl:1: not JSON"),
        ("[1]\n", "t.jsonl:1: a list, not an object"),
        ('{"prompt": "a", "output": "b"}\n{"prompt": "a", "outptu": "b"}\n', "t.jsonl:2: no answer field"),
        ('{"prompt": "a", "output": 3}\n', "field 'output' is 3; it must be a text"),
        ('{"messages": [{"role": "user", "content": "a"}]}\n', "ends with one of role 'assistant'"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        traces.read(file, traces.estimated)


def test_the_command_prints_and_refuses(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", {"question": "add 808", "reply": "value_a = 4729 " + "so on " * 900 + "value_a"})
    run = CliRunner().invoke(main, ["audit", str(file), "--fields", "question", "reply", "--format", "json"])
    assert run.exit_code == 0, run.output
    found = json.loads(run.output)
    assert (found["traces"], found["facts_stated_once_and_used_again"]) == (1, 1)
    assert found["suggested"]["keep"] >= 64
    refused = CliRunner().invoke(main, ["audit", str(file)])
    assert refused.exit_code == 2
    assert "Name both with --fields" in refused.output
