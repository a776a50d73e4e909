"""Where answers are found, and the graders without algebra."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orchestrator.tasks.base import Verdict
from orchestrator.tasks.graders.answers import answer_part, boxes, last_box
from orchestrator.tasks.graders.plain import exact, number, parse_number


@pytest.mark.parametrize(
    ("text", "finish_reason", "thinks", "part"),
    [
        ("thought</think>answer", "stop", False, "answer"),
        ("a</think>b</think>c", "stop", False, "c"),
        ("<think>never ends \\boxed{1}", "stop", False, None),
        ("no tags", "stop", False, "no tags"),
        ("no tags", "stop", True, None),
        ("no tags", "length", False, None),
        ("thought</think>half an ans", "length", False, "half an ans"),
        ("answer<|im_end|>and on \\boxed{9}", "stop", False, "answer"),
    ],
)
def test_answer_part(text: str, finish_reason: str, thinks: bool, part: str | None) -> None:
    assert answer_part(text, finish_reason, thinks=thinks) == part


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} no, \boxed{ 2 }", "2"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\fbox{7}", "7"),
        (r"\boxed {8}", "8"),
        (r"\boxed{\text{a \boxed{3}}}", r"\text{a \boxed{3}}"),
        ("nothing", None),
        (r"\boxed{", None),
    ],
)
def test_last_box(text: str, content: str | None) -> None:
    assert last_box(text) == content


def test_boxes_say_where_they_are() -> None:
    text = r"x \boxed{1} y \boxed{2}"
    assert [text[start:end] for start, end, _ in boxes(text)] == [r"\boxed{1}", r"\boxed{2}"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", Fraction(2469, 2)),
        ("-3/4", Fraction(-3, 4)),
        (" 7. ", Fraction(7)),
        ("$5$", Fraction(5)),
        (r"\$1{,}000", Fraction(1000)),
        (".5", Fraction(1, 2)),
        ("1/0", None),
        ("1.5/2", Fraction(3, 4)),
        ("12 apples", None),
        ("1,23", None),
        ("", None),
    ],
)
def test_parse_number(text: str, value: Fraction | None) -> None:
    assert parse_number(text) == value


def test_number_reads_the_last_one() -> None:
    assert number("8", "first 3, then 5, so 8.", "stop").verdict is Verdict.CORRECT
    assert number("8", r"8 then \boxed{9}", "stop").verdict is Verdict.WRONG
    assert number("8", "no number", "stop").verdict is Verdict.NO_ANSWER
    assert number("1/3", "0.3333333333", "stop").verdict is Verdict.WRONG


def test_exact_ignores_white_space_only() -> None:
    assert exact("New  York", "\n New York ", "stop").verdict is Verdict.CORRECT
    assert exact("New York", "new york", "stop").verdict is Verdict.WRONG
    assert exact("yes", "  ", "stop").verdict is Verdict.NO_ANSWER
