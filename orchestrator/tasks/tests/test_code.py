"""Programs: extraction, output checks, packed tests, and a sandbox that lets nothing out."""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.grading import grader_key
from orchestrator.tasks import registry
from orchestrator.tasks.base import Verdict
from orchestrator.tasks.benchmark import MINI_DIR
from orchestrator.tasks.code import cases, sandbox, turnstile
from orchestrator.tasks.code import judge as judging
from orchestrator.tasks.code.cases import Case, Item
from orchestrator.tasks.code.checker import same_output, same_value
from orchestrator.tasks.code.extract import anywhere, official, program
from orchestrator.tasks.code.judge import JUDGES, Judged, Rules, Status, judge
from orchestrator.tasks.code.sandbox import UNSAFE, Level, Limits, Unavailable
from orchestrator.tasks.code.walls import candidates, choose

CASES = json.loads((Path(__file__).parent / "code_cases.json").read_text(encoding="utf-8"))
DOUBLE = Item("", (Case("4\n", "8\n"), Case("5\n", "10")))
ADD = Item("add", (Case("[1, 2]\n3", "[1, 2, 3]"), Case("[]\n0", "[0]")))
LIMITS = Limits(cpu_seconds=1, wall_seconds=3.0, memory_bytes=512 * 1024**2, output_bytes=1024**2, processes=16)
QUICK = Rules(LIMITS)
COMPAT = replace(JUDGES["lcb-compat"], limits=LIMITS)
WORKING = [level for level in candidates(root=os.geteuid() == 0) if not sandbox.probe(level)]
contained = pytest.mark.skipif(not WORKING, reason="this machine offers no sandbox (root or user namespaces)")


@pytest.mark.parametrize("case", CASES["extraction"], ids=lambda case: case["name"])
def test_extraction(case: dict[str, Any]) -> None:
    assert program(case["response"]).strip() == case["expected_code"].strip()


@pytest.mark.parametrize("case", CASES["checker"])
def test_checker(case: dict[str, Any]) -> None:
    assert same_output(case["prediction"], case["expected_output"]) is case["passes"]


@contained
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print(int(input()) * 2)", Status.PASS),
        ("import sys\nfor line in sys.stdin:\n    print(int(line) * 2)\nquit()", Status.PASS),
        ("import sys\nprint(int(open(0).read()) * 2)\nsys.exit(1)", Status.PASS),
        ("print(int(input()) + 4)", Status.WRONG_ANSWER),
        ("print(int(input()) * 2)\nraise ValueError", Status.RUNTIME_ERROR),
        ("print(", Status.RUNTIME_ERROR),
        ("while True: pass", Status.TIME_LIMIT),
        ("x = bytearray(2 * 1024**3)", Status.MEMORY_LIMIT),
        ("while True: print('x' * 1000)", Status.OUTPUT_LIMIT),
        ("  ", Status.NO_CODE),
    ],
)
def test_programs(code: str, status: Status) -> None:
    assert judge(code, DOUBLE, QUICK).status is status


@contained
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("def add(self, a: List[int], b: int):\n        return (*a, b)", Status.PASS),
        ("def add(self, a, b):\n        import numpy\n        return numpy.array([*a, b])", Status.PASS),
        ("def add(self, a, b):\n        return [a, b]", Status.WRONG_ANSWER),
        ("def add(self, a, b):\n        exit()", Status.RUNTIME_ERROR),
        ("def add(self, a, b):\n        return type('E', (), {'__eq__': lambda s, o: True})()", Status.RUNTIME_ERROR),
        ("def sub(self, a, b):\n        return a", Status.RUNTIME_ERROR),
        ("def add(self, a, b):\n        while True: pass", Status.TIME_LIMIT),
    ],
)
def test_functions(body: str, status: Status) -> None:
    assert judge(f"class Solution:\n    {body}", ADD, QUICK).status is status


@contained
@pytest.mark.parametrize("level", WORKING, ids=lambda level: level.name)
def test_nothing_gets_out(tmp_path: Path, level: Level) -> None:
    """Hostile programs leave no file, no connection and no process, and the judge lives, at every level that works."""
    tmp_path.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        code = f"""
import os, socket, time
for path in ({str(tmp_path / "out")!r}, "/tmp/evictbench_out", "/dev/shm/evictbench_out"):
    try:
        open(path, "w").write("x")
    except OSError:
        pass
try:
    socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), 1)
except OSError:
    pass
if os.fork() == 0:
    os.setsid()
    time.sleep(30)
print(int(input()) * 2)
"""
        started = time.monotonic()
        assert judge(code, DOUBLE, QUICK, at=level) == Judged(Status.PASS, 0, level.name)
        assert time.monotonic() - started < 15
        with pytest.raises(BlockingIOError):
            server.accept()
    assert not _processes_of_programs()
    assert list(tmp_path.iterdir()) == []
    assert not [p for p in (Path("/tmp/evictbench_out"), Path("/dev/shm/evictbench_out")) if p.exists()]


def row(private: str, kind: str = "stdin") -> dict[str, Any]:
    public = json.dumps([{"input": "4\n", "output": "8", "testtype": kind}])
    return {
        "question_id": "q",
        "question_content": "Double it.",
        "difficulty": "medium",
        "starter_code": "",
        "public_test_cases": public,
        "private_test_cases": private,
        "metadata": "{}",
    }


def test_packed_tests_are_read_and_nothing_else_is_unpickled() -> None:
    tests = json.dumps([{"input": "5\n", "output": "10", "testtype": "stdin"}])
    packed = base64.b64encode(zlib.compress(pickle.dumps(tests))).decode()
    assert cases.item(row(packed)) == cases.item(row(tests)) == Item("", (Case("4\n", "8"), Case("5\n", "10")))
    hostile = base64.b64encode(zlib.compress(pickle.dumps(Path("x")))).decode()
    with pytest.raises(UserError, match="refused pathlib"):
        cases.item(row(hostile))
    with pytest.raises(UserError, match="cannot be read"):
        cases.item(row("!"))


def test_a_problem_without_tests_is_refused() -> None:
    with pytest.raises(UserError, match="has no test"):
        cases.item({**row("[]"), "public_test_cases": "[]"})


@contained
def test_the_task_grades_programs(tmp_path: Path) -> None:
    path = tmp_path / "lcb.jsonl"
    easy = {**row("[]"), "difficulty": "easy", "question_content": "Other."}
    path.write_text(json.dumps(row("[]")) + "\n" + json.dumps(easy) + "\n", encoding="utf-8")
    task = registry.get("livecodebench", data_file=str(path))
    [problem] = task.problems()
    right = task.grade(problem, "ok</think>\n```python\nprint(2 * int(input()))\n```", "stop")
    assert right.verdict is Verdict.CORRECT
    assert sandbox.level().name in right.method
    compat = registry.get("livecodebench", data_file=str(path), judge="lcb-compat")
    assert grader_key(compat).name == "program-lcb_compat-v3"
    mocked = compat.grade(problem, "```python\nfor line in __import__('sys').stdin: print(2 * int(line))\n```", "stop")
    assert mocked.verdict is Verdict.WRONG
    cut = task.grade(problem, "<think>\n```python\nprint(2 * int(input()))\n```", "length")
    assert (cut.verdict, cut.lenient) == (Verdict.TRUNCATED, Verdict.CORRECT)
    assert task.grade(problem, "```python\nprint(1)\n```", "stop").verdict is Verdict.WRONG
    assert task.grade(problem, "```python\nprint(1)", "length").verdict is Verdict.TRUNCATED
    assert task.grade(problem, "no idea", "stop").verdict is Verdict.NO_ANSWER


@contained
@pytest.mark.parametrize("level", WORKING, ids=lambda level: level.name)
def test_a_fork_bomb_is_stopped_and_gone(level: Level) -> None:
    code = """
import os, time
born = 0
try:
    while born < 200:
        if os.fork() == 0:
            time.sleep(60)
        born += 1
except OSError:
    pass
print(born)
"""
    ended = sandbox.run(code, b"", LIMITS, level)
    assert 0 < int(ended.output or 0) <= LIMITS.processes
    assert not _processes_of_programs()


def _processes_of_programs() -> list[str]:
    """Processes that run one of the sandbox's runners."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"/mnt/runner/runner.py" in words and b"sh\0-c" not in words:
                found.append(process.name)
    return found


@contained
def test_a_group_caps_the_memory_of_all_processes_together() -> None:
    level = next((level for level in WORKING if level.cgroup), None)
    if level is None:
        pytest.skip("this machine lets nobody make control groups")
    code = """
import os, time
end = time.monotonic() + 10
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(200 * 1024**2)
        time.sleep(20)
while time.monotonic() < end:
    if os.waitpid(-1, os.WNOHANG)[0]:
        break
    time.sleep(0.01)
"""
    ended = sandbox.run(code, b"", replace(LIMITS, memory_bytes=256 * 1024**2, wall_seconds=15.0), level)
    assert ended.out_of_memory


def test_the_best_level_that_works_is_taken_and_none_is_an_error_that_says_how() -> None:
    assert [level.name for level in candidates(root=True)] == [
        *("bwrap+uid+cgroup", "bwrap+uid", "unshare+uid+cgroup", "unshare+uid"),
    ]
    assert [level.name for level in candidates(root=False)] == ["bwrap+cgroup", "bwrap", "unshare+cgroup", "unshare"]
    for level in candidates(root=False):
        assert choose(lambda tried, works=level: "" if tried == works else "no", root=False) == level  # type: ignore[misc]
    with pytest.raises(Unavailable, match=r"bwrap: no setuid.*unshare: no setuid.*Install bubblewrap.*allow_unsafe"):
        choose(lambda _: "no setuid", root=False)


def test_a_machine_without_walls_refuses_unless_the_job_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Level:
        raise Unavailable("no walls")

    monkeypatch.setattr(sandbox, "level", nothing)
    careful = registry.get("livecodebench", mini=True)
    with pytest.raises(UserError, match="no walls"):
        careful.ready()  # type: ignore[attr-defined]
    bold = registry.get("livecodebench", mini=True, allow_unsafe=True)
    bold.ready()  # type: ignore[attr-defined]
    assert judge("print(int(input()) * 2)", DOUBLE, QUICK, at=UNSAFE) == Judged(Status.PASS, 0, "unsafe")


@contained
@pytest.mark.parametrize(
    ("code", "compat"),
    [
        ("print(int(input()) * 2)", Status.PASS),
        ("import sys\nfor line in sys.stdin:\n    print(int(line) * 2)", Status.RUNTIME_ERROR),
        ("import sys\nsys.stdout.buffer.write(b'8')", Status.RUNTIME_ERROR),
        ("if __name__ == '__main__':\n    print(int(input()) * 2)", Status.PASS),
        ("if __name__ == '__main__':\n    print(int(input()) * 2)\nx = 1", Status.WRONG_ANSWER),
        ("n = 0\ndef f():\n    global n\n    n = n + 1\nf()\nprint(int(input()) * 2)", Status.RUNTIME_ERROR),
        ("quit()", Status.RUNTIME_ERROR),
        ("while True: pass", Status.TIME_LIMIT),
        ("import os\nos._exit(0)", Status.RUNTIME_ERROR),
    ],
)
def test_the_compatible_judge_keeps_the_official_quirks(code: str, compat: Status) -> None:
    assert judge(code, DOUBLE, COMPAT).status is compat


@contained
def test_the_compatible_judge_calls_functions() -> None:
    cheat = "def add(self, a, b):\n        return type('E', (), {'__eq__': lambda s, o: True})()"
    for body, status in (
        ("def add(self, a: List[int], b: int):\n        return (*a, b)", Status.PASS),
        ("def add(self, a, b):\n        return [a, b]", Status.WRONG_ANSWER),
        (cheat, Status.PASS),
    ):
        assert judge(f"class Solution:\n    {body}", ADD, COMPAT).status is status, body


def test_extraction_by_other_judges() -> None:
    text = "<think>\n```python\nA\n```\n</think>\n```python\nB\n```\nprints\n```\n8\n```"
    assert (program(text), official(text), anywhere(text)) == ("B", "8", "B")
    unfinished = "<think>\n```python\nA\n```\n"
    assert (program(unfinished), official(unfinished), anywhere(unfinished)) == ("", "", "A")
    assert not official("```python")


def test_the_published_checker_tolerates_a_millionth() -> None:
    assert same_output("0.3333333", "0.33333333", 1e-6)
    assert not same_output("0.33333", "0.33333333", 1e-6)
    assert same_value([1.0, 2.0000001], [1, 2], 1e-6)
    assert not same_value([1.0, "2"], [1, 2], 1e-6)


def test_a_late_program_runs_again_alone_and_a_flip_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    late, fine = Judged(Status.TIME_LIMIT, 2, "x"), Judged(Status.PASS, 0, "x")
    calls: list[int] = []

    def once(code: str, item: Item, rules: Rules, level: Level) -> Judged:
        calls.append(len(item.cases))
        return late if len(calls) == 1 else fine

    monkeypatch.setattr(judging, "_once", once)
    assert judge("x", DOUBLE, QUICK, at=UNSAFE) == replace(fine, flipped=True)
    assert calls == [2, 1], "a program over standard input goes on at the test where it was late"


def test_who_wants_to_be_alone_waits_and_is_not_overtaken() -> None:
    order: list[str] = []
    entered = threading.Event()

    def alone() -> None:
        entered.set()
        with turnstile.running(alone=True):
            order.append("alone")

    def late() -> None:
        with turnstile.running():
            order.append("late")

    with turnstile.running(), turnstile.running():
        first = threading.Thread(target=alone)
        first.start()
        entered.wait()
        time.sleep(0.2)
        second = threading.Thread(target=late)
        second.start()
        time.sleep(0.2)
        order.append("both")
    first.join(10)
    second.join(10)
    assert order == ["both", "alone", "late"]


@contained
def test_the_mini_set_is_solved_by_its_reference_solutions() -> None:
    """A few in the sandbox, since each test is a process; all of them when the set was made."""
    task = registry.get("livecodebench", mini=True)
    problems = task.problems()
    rows = [json.loads(line) for line in (MINI_DIR / "livecodebench.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(problems) == len(rows) >= 20
    assert {bool(row["starter_code"]) for row in rows} == {True, False}
    for index in (3, 7, 12, 20):
        answer = f"</think>```python\n{rows[index]['reference_solution']}\n```".replace("</think>", "</think>\n")
        assert task.grade(problems[index], answer, "stop").verdict is Verdict.CORRECT, rows[index]["question_title"]
        wrong = answer.replace("return", "return None #").replace("print(", "print(0, ")
        assert task.grade(problems[index], wrong, "stop").verdict is Verdict.WRONG
