"""Programs: extraction, output checks, packed tests, and a sandbox that lets nothing out."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UserError
from orchestrator.tasks import registry
from orchestrator.tasks.base import Verdict
from orchestrator.tasks.code import cases, sandbox
from orchestrator.tasks.code.cases import Case, Item
from orchestrator.tasks.code.checker import same_output
from orchestrator.tasks.code.extract import program
from orchestrator.tasks.code.judge import Status, judge
from orchestrator.tasks.code.sandbox import Limits

CASES = json.loads((Path(__file__).parent / "code_cases.json").read_text(encoding="utf-8"))
DOUBLE = Item("", (Case("4\n", "8\n"), Case("5\n", "10")))
ADD = Item("add", (Case("[1, 2]\n3", "[1, 2, 3]"), Case("[]\n0", "[0]")))
QUICK = Limits(cpu_seconds=1, wall_seconds=3.0, memory_bytes=512 * 1024**2, output_bytes=1024**2, processes=16)


def _level() -> str | None:
    try:
        return sandbox.level()
    except sandbox.Unavailable:
        return None


contained = pytest.mark.skipif(_level() is None, reason="this machine offers no sandbox (root or user namespaces)")


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
def test_nothing_gets_out(tmp_path: Path) -> None:
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
        assert judge(code, DOUBLE, QUICK).status is Status.PASS
        assert time.monotonic() - started < 15
        with pytest.raises(BlockingIOError):
            server.accept()
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
    assert str(_level()) in right.method
    assert task.grade(problem, "```python\nprint(1)\n```", "stop").verdict is Verdict.WRONG
    assert task.grade(problem, "```python\nprint(1)", "length").verdict is Verdict.TRUNCATED
    assert task.grade(problem, "no idea", "stop").verdict is Verdict.NO_ANSWER
