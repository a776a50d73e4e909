"""The reasoner's problems: pinned for ever, solved right, graded strictly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from orchestrator.errors import UserError
from orchestrator.models import EMBEDDED_DIR
from orchestrator.tasks import registry
from orchestrator.tasks.base import Verdict
from orchestrator.tasks.reasoner import (
    Program,
    ReasonerP,
    ReasonerW,
    Walk,
    answer_tokens,
    reference_text,
    spell,
)

TOKENIZER: Path = EMBEDDED_DIR / "reasoner" / "tokenizer.json"

PINNED_W = (
    "w26-32-r8-000002",
    "Wx67n26R8A31B46C53D45E70F97G82H15I21J37",
    "7097",
)
PINNED_P = (
    "p26-32-r8-000002",
    "Pa55b77c33d86n30R8AdcBbdCabDbcEdbFacGbcHdc",
    "06493368",
)


def test_problems_are_pinned() -> None:
    """A changed generator renames nothing by accident: these prompts and answers may never change."""
    walk = registry.get("reasoner_w").problems(3)[2]
    program = registry.get("reasoner_p").problems(3)[2]
    assert (walk.problem_id, walk.messages[0]["content"], walk.gold) == PINNED_W
    assert (program.problem_id, program.messages[0]["content"], program.gold) == PINNED_P


def test_walk_trace_is_the_one_the_model_learnt() -> None:
    walk = Walk(57, 10, 4, (72, 60, 58, 66, 76, 25, 24, 66, 61, 81))
    assert walk.prompt == "Wx57n10R4A72B60C58D66E76F25G24H66I61J81"
    thought, answer = walk.solve()
    assert thought.splitlines()[:7] == [
        "R00x57m57",
        "01|57I61:7+1=08,5+6+0=11>18m57",
        "02|18A72:8+2=10,1+7+1=09>90m90",
        "03|90D66:0+6=06,9+6+0=15>56m90",
        "04|56A72:6+2=08,5+7+0=12>28m90",
        "R04x28m90",
        "05|28D66:8+6=14,2+6+1=09>94m94",
    ]
    assert thought.endswith("10|70A72:0+2=02,7+7+0=14>42m94\nR10x42m94\n")
    assert answer == "4294"


def test_program_trace_is_the_one_the_model_learnt() -> None:
    code = tuple((pair[0], pair[1]) for pair in ("dc", "ba", "dc", "ba", "db", "ba", "ad", "db"))
    program = Program((57, 71, 99, 59), 9, 4, code)
    assert program.prompt == "Pa57b71c99d59n09R4AdcBbaCdcDbaEdbFbaGadHdb"
    thought, answer = program.solve()
    assert thought.splitlines()[:6] == [
        "R00a57b71c99d59",
        "01|Adc:59+99:9+9=18,5+9+1=15>d58",
        "02|Bba:71+57:1+7=08,7+5+0=12>b28",
        "03|Cdc:58+99:8+9=17,5+9+1=15>d57",
        "04|Dba:28+57:8+7=15,2+5+1=08>b85",
        "R04a57b85c99d57",
    ]
    assert thought.endswith("09|Adc:84+99:4+9=13,8+9+1=18>d83\nR09a99b42c99d83\n")
    assert answer == "99429983"


@given(u=st.integers(0, 99), v=st.integers(0, 99))
def test_spelled_addition_is_right(u: int, v: int) -> None:
    units, tens = (int(part) for part in re.findall(r"=(\d\d)", spell(u, v)))
    assert (tens % 10) * 10 + units % 10 == (u + v) % 100
    assert tens * 10 + units % 10 == u + v


@given(index=st.integers(0, 5000))
def test_answers_agree_with_plain_arithmetic(index: int) -> None:
    walk = ReasonerW().problem(index)
    match = re.fullmatch(r"Wx(\d\d)n(\d\d)R8((?:[A-J]\d\d){10})", walk.messages[0]["content"])
    assert match
    x, rules = int(match[1]), [int(part[1:]) for part in re.findall(r"[A-J]\d\d", match[3])]
    seen = [x]
    for t in range(1, int(match[2]) + 1):
        x = (x + rules[(x + t) % 10]) % 100
        seen.append(x)
    assert walk.gold == f"{x:02d}{max(seen):02d}"

    program = ReasonerP().problem(index)
    match = re.fullmatch(
        r"Pa(\d\d)b(\d\d)c(\d\d)d(\d\d)n(\d\d)R8((?:[A-H][a-d]{2}){8})", program.messages[0]["content"]
    )
    assert match
    state = {name: int(match[i + 1]) for i, name in enumerate("abcd")}
    code = re.findall(r"[A-H]([a-d])([a-d])", match[6])
    assert all(target != source for target, source in code)
    for step in range(int(match[5])):
        target, source = code[step % 8]
        state[target] = (state[target] + state[source]) % 100
    assert program.gold == "".join(f"{state[name]:02d}" for name in "abcd")


@pytest.mark.parametrize("name", ["reasoner_w", "reasoner_p"])
def test_expected_tokens_are_the_tokenizers(name: str) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    task = registry.get(name)
    lengths = [len(tokenizer.encode(reference_text(problem) + "<|end|>").ids) for problem in task.problems(32)]
    assert [answer_tokens(problem) for problem in task.problems(32)] == lengths
    assert task.expected_tokens == round(sum(lengths) / 32)


def test_difficulty_renames_every_problem() -> None:
    standard, harder = registry.get("reasoner_w"), registry.get("reasoner_w", steps="44-48")
    assert standard.revision != harder.revision
    ids = {problem.problem_id for problem in standard.problems(8)}
    assert ids.isdisjoint(problem.problem_id for problem in harder.problems(8))
    assert all(44 <= problem.meta["steps"] <= 48 for problem in harder.problems(8))


def test_growing_the_limit_keeps_the_problems() -> None:
    task = registry.get("reasoner_p")
    assert list(task.problems(24))[:8] == list(task.problems(8))
    assert len({problem.problem_id for problem in task.problems(2000)}) == 2000


@pytest.mark.parametrize("steps", ["32-26", "0-4", "90-100", "many", "4-", 2.5])
def test_impossible_difficulty_is_refused(steps: object) -> None:
    with pytest.raises(UserError, match="steps"):
        registry.get("reasoner_w", steps=steps)


def test_unknown_recap_is_refused() -> None:
    with pytest.raises(UserError, match="choose 4 or 8"):
        registry.get("reasoner_p", recap=5)


@pytest.mark.parametrize(
    ("text", "finish_reason", "verdict"),
    [
        ("{thought}</think>\\boxed{{{gold}}}", "stop", Verdict.CORRECT),
        ("{thought}</think>\\boxed{{{gold}}}", "length", Verdict.CORRECT),
        ("{thought}</think>\\boxed{{0{gold}}}", "stop", Verdict.WRONG),
        ("\\boxed{{{gold}}}", "stop", Verdict.NO_ANSWER),
        ("{thought}\\boxed{{{gold}}}", "length", Verdict.TRUNCATED),
        ("{thought}</think>", "stop", Verdict.NO_ANSWER),
        ("{thought}</think>\\boxed{{{gold}", "length", Verdict.TRUNCATED),
        ("{thought}</think>\\boxed{{}}", "stop", Verdict.NO_ANSWER),
        ("", "stop", Verdict.NO_ANSWER),
        ("{thought}</think>\\boxed{{{gold}}}", "abort", Verdict.ERROR),
    ],
)
def test_grades(text: str, finish_reason: str, verdict: Verdict) -> None:
    task = registry.get("reasoner_w")
    problem = task.problems(1)[0]
    grade = task.grade(problem, text.format(thought=problem.meta["thought"], gold=problem.gold), finish_reason)
    assert grade.verdict is verdict
    assert grade.seconds >= 0
