"""Graders as tables of cases, and the process that algebra runs in."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tasks.base import Verdict
from orchestrator.tasks.graders import integers, letters, math, published
from orchestrator.tasks.graders.latex import bracketed, normalise, split
from orchestrator.tasks.graders.symbolic import Checker, SymbolicTimeout
from orchestrator.verify import graders as verify

CASES = json.loads((Path(__file__).parent / "grader_cases.json").read_text(encoding="utf-8"))
OWN_CASES = json.loads((Path(__file__).parent / "own_grader_cases.json").read_text(encoding="utf-8"))
TOWER = r"9^{9^{9^{9^{9}}}}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_known_cases(case: dict[str, Any]) -> None:
    [(name, problem)] = verify.check([case])
    assert problem is None, f"{name}: {case['note']}"


def test_every_form_of_an_answer_that_was_thought_of() -> None:
    """Fractions to code words, in every task; some are conventions (`policy`)."""
    assert [f"{name}: {problem}" for name, problem in verify.check(OWN_CASES) if problem] == []


def test_verify_fails_what_it_does_not_know() -> None:
    case = {"id": "x", "gold": "1", "response": r"\boxed{1}", "expected": True}
    wrong = {**case, "task": "math500", "expected": False}
    broken: list[dict[str, Any]] = [
        {**case, "task": "chess"},
        {**case, "grader": "chess"},
        {"id": "y", "task": "math500"},
        wrong,
    ]
    assert all(problem is not None for _, problem in verify.check(broken))
    assert list(verify.check([{**case, "grader": "math"}])) == [("x", None)]


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        ("2", "2k+2", False),
        ("2", "2k", False),
        ("2k", "2", False),
        ("-2,1", "1,-2", True),
        ("1,-2", "(-2,1)", False),
        ("0", "5x-7y+11z+4=0", False),
        ("10\\text{ m}", "10\\text{ meters}", True),
        ("10\\text{ m}", "10 km", False),
        ("90^\\circ", "{\\color{blue}90^\\circ}", True),
        ("90", "90^{\\circ}", True),
        ("9", "9.", True),
        ("\\frac{3}{4}", "\\mathbf{\\frac{3}{4}}", True),
        ("3\\sqrt{13}", "3√13", True),
        ("x^2", "x²", True),
        ("1,234", "1234", True),
        ("12,345", "12.345", False),
        ("\\frac{2}{3}", "0.666667", True),
        ("\\frac{2}{3}", "0.66667", False),
        ("3.14", "\\frac{157}{50}", True),
        ("-\\frac{1}{2}", "\\frac{-1}{2}", True),
        ("-3", "-3^\\circ", True),
        ("\\{1,2\\}", "\\{2,1\\}", True),
        ("(1,2]", "(1,2)", False),
        ("x \\le 3", "(-\\infty,3]", True),
        ("1 < x \\le 3", "(1,3]", True),
        ("(2,\\infty)", "x>2", True),
        ("(2,\\infty)", "x\\ge 2", False),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{bmatrix} 1 \\\\ 2 \\end{bmatrix}", True),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}", False),
        ("\\text{Monday}", "monday", True),
        ("\\text{Monday}", "\\text{Sunday}", False),
        ("2^{-99}", "2^{-98}", False),
        ("\\sin(x)", "\\cos(x)", False),
        ("2\\sqrt{2}", "\\sqrt{8}", True),
        ("x^2+y^2+z^2", "z^2+y^2+x^2", True),
        ("x^{2}+y^{2}+z^{2}", "z^{2}+y^{2}+2x^{2}", False),
        ("1", "9^{9^{9^{9}}}", False),
        ("\\log_2 3", "\\frac{\\ln 3}{\\ln 2}", True),
    ],
)
def test_equal(gold: str, answer: str, correct: bool) -> None:
    assert math.equal(gold, answer)[0] is correct


def test_a_cut_off_answer_is_truncated_not_wrong() -> None:
    assert math.grade("7", "so far \\boxed{5} but", "length").verdict is Verdict.TRUNCATED
    assert math.grade("7", "thought</think>\\boxed{7}", "length").verdict is Verdict.CORRECT
    assert math.grade("7", "", "stop").verdict is Verdict.NO_ANSWER


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("070.", 70),
        ("-984", -984),
        ("1,024", 1024),
        ("204 \\text{ minutes}", 204),
        ("7k", None),
        ("5!", None),
        ("", None),
    ],
)
def test_integers(answer: str, value: int | None) -> None:
    assert integers.parse(answer) == value


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ('{"answer": "A"} no, {"answer": "c"}', "C"),
        ("\\boxed{(B)}", "B"),
        ("\\boxed{\\text{D: because}}", "D"),
        ("Answer: B\nAnswer: **C**", "C"),
        ("I think a better answer is not given.", None),
        ("A is tempting and B too.", None),
    ],
)
def test_letters(text: str, letter: str | None) -> None:
    assert letters.find(text) == letter


def test_latex_parts() -> None:
    assert split("(1,2), \\{3,4\\}, f(5,6)", ",") == ["(1,2)", "\\{3,4\\}", "f(5,6)"]
    assert bracketed("(1,2] ") is None
    assert bracketed("(1,2]") == ("(", "1,2", "]")
    assert bracketed("(1)(2)") is None
    assert normalise("\\dfrac12") == normalise("$\\frac{1}{2}$.") == "\\frac{1}{2}"


def test_a_hanging_expression_costs_its_limit_and_no_more() -> None:
    checker = Checker(cpu_seconds=1.0)
    try:
        assert checker.equal("2", "1+1")
        child = checker._child
        assert child is not None
        started = time.monotonic()
        with pytest.raises(SymbolicTimeout):
            checker.equal("1", TOWER)
        assert time.monotonic() - started < 60  # two limits of a second and one start of the child
        assert not Path(f"/proc/{child.pid}").exists()
        assert checker.equal("x+1", "1+x")
    finally:
        checker.close()


def test_a_killed_child_is_replaced() -> None:
    checker = Checker()
    try:
        assert checker.equal("2", "1+1")
        assert checker._child is not None
        os.kill(checker._child.pid, 9)
        assert not checker.equal("2", "1+2")
    finally:
        checker.close()


def test_algebra_works_off_the_main_thread() -> None:
    verdicts: list[bool] = []
    threads = [threading.Thread(target=lambda: verdicts.append(math.equal("a+b", "b+a")[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [True] * 4


@pytest.mark.parametrize(
    ("text", "finish_reason", "strict", "lenient"),
    [
        ("so \\boxed{12}</think> It is \\boxed{12}", "stop", Verdict.CORRECT, Verdict.CORRECT),
        ("<think>so \\boxed{12}. But wait", "length", Verdict.TRUNCATED, Verdict.CORRECT),
        ("<think>so \\boxed{13}. But wait", "length", Verdict.TRUNCATED, Verdict.WRONG),
        ("<think>the answer is 12", "length", Verdict.TRUNCATED, Verdict.TRUNCATED),
        ("so \\boxed{12}</think>\n", "stop", Verdict.NO_ANSWER, Verdict.CORRECT),
        ("nothing<|im_end|>\\boxed{12}", "stop", Verdict.NO_ANSWER, Verdict.NO_ANSWER),
        ("\\boxed{12}", "error", Verdict.ERROR, Verdict.ERROR),
    ],
)
def test_unfinished_thoughts_count_only_in_the_lenient_reading(
    text: str, finish_reason: str, strict: Verdict, lenient: Verdict
) -> None:
    for grade in (integers.grade, math.grade):
        found = grade("12", text, finish_reason)
        assert (found.verdict, found.lenient) == (strict, lenient), grade


@pytest.mark.parametrize(
    ("gold", "text", "correct"),
    [
        ("12", "<think>so \\boxed{12}. But wait", True),
        ("0.25", "\\boxed{25}", True),
        ("0.25", "\\boxed{0.25009}", True),
        ("0.25", "\\boxed{0.2502}", False),
        ("1,2", "\\boxed{2, 1}", True),
        ("1,2", "\\boxed{2}", False),
        ("\\frac{1}{2}", "\\boxed{x = \\dfrac12}", True),
        ("A", "\\boxed{\\text{A}}", True),
        ("A", "\\boxed{B}", False),
        ("15", "\\boxed{15 \\text{ cm}}", True),
        ("x+1", "\\boxed{1+x}", True),
        ("7", "it is 7", False),
    ],
)
def test_the_published_rules_forgive_what_the_authors_forgave(gold: str, text: str, correct: bool) -> None:
    grade = published.grade(gold, text, "length")
    assert (grade.verdict is Verdict.CORRECT) is correct
    assert grade.lenient is grade.verdict


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        ("1e-3", "0.001", True),
        ("6.02e23", r"6.02\times 10^{23}", True),
        (r"3\times10^8", r"3\times10^9", False),
        (r"0.1\overline{6}", r"\frac16", True),
        (r"\frac13", r"0.33\ldots", False),
        ("(0,1)", "]0,1[", True),
        ("[0,1)", "]0,1]", False),
        (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>1", True),
        ("(3,4)", "x=3, y=4", True),
        ("(3,4)", "y=3, x=4", False),
        ("x=2,y=3", "(2,3)", True),
        ("1,2", r"x=1\text{ or }x=2", True),
        ("1,2", "x=1,x=3", False),
        (r"\emptyset", r"\text{no solution}", True),
        (r"\mathbb{R}", r"\text{all real numbers}", True),
        (r"\text{ellipse}", r"\text{an ellipse}", True),
        (r"\text{June 20}", "June 20", True),
        (r"\text{June 20}", "June 21", False),
        (r"\text{A and C}", "C, A", True),
        (r"{10 \choose 3}", "120", True),
        (r"\frac34", "¾", True),
        ("2^{10}", "2¹⁰", True),
        ("x_1", "x₁", True),
        (r"\sqrt[3]{2}", "∛2", True),
        ("12", "1 2", False),
        ("12345", r"12\,345", True),
        ("1,000,000", "10^6", True),
        ("5", "5=x", True),
        (r"\frac12", r"\frac{1}{2} \text{ or } 0.5", True),
        ("1010_2", r"(1010)_{\text{two}}", True),
        ("8:30", r"8:30 \text{ a.m.}", True),
        ("45", "45^o", True),
        ("7", r"7^{\text{th}}", True),
        ("7", r"\boxed{\text{The answer is } 7}", True),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\[4pt] 2 \end{pmatrix}", True),
        (r"\text{(A)}", "(A) 5", True),
        (r"\text{(A)}", "(B) 5", False),
    ],
)
def test_forms_of_the_same_answer(gold: str, answer: str, correct: bool) -> None:
    grade = math.grade(gold, f"Thus \\boxed{{{answer}}}", "stop")
    assert (grade.verdict is Verdict.CORRECT) is correct, grade


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("070.", 70),
        ("70.0", 70),
        (r"\textbf{(70)}", 70),
        (r"N \equiv 70 \pmod{1000}", 70),
        ("70 units", 70),
        ("69+1", None),
        ("7^{7^7} \\bmod 1000", None),
        ("5,6", None),
    ],
)
def test_integers_in_boxes(answer: str, value: int | None) -> None:
    assert integers.parse(answer) == value


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Option B is correct.", "B"),
        ("Option B is not correct.", None),
        ("I choose B.", "B"),
        ("### Answer\n\n(B)", "B"),
        ("All others fail.\n\n**B**", "B"),
        ("A\nB\nC\nD", None),
        (r"\boxed{\text{Option B}}", "B"),
        ('{"answer": "B. foo"}', "B"),
        ("Answer: Between A and B", None),
        ("The answer is a function", None),
    ],
)
def test_letters_are_named_not_guessed(text: str, letter: str | None) -> None:
    assert letters.find(text) == letter
