"""`evictbench verify code-execution FILE`: judge every program of a file in the sandbox and watch what gets out of it.

A file holds `problems` (rows with LiveCodeBench's fields and `solutions`: name, code, expected_pass, expected_status,
any_failing_status_ok), `checker_cases` and `extraction_cases`. Where the machine has no sandbox every program fails.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.tasks.code import cases
from orchestrator.tasks.code.checker import same_output
from orchestrator.tasks.code.extract import program
from orchestrator.tasks.code.judge import Rules, Status, judge
from orchestrator.tasks.code.sandbox import Limits, Unavailable
from orchestrator.tasks.code.walls import user_id

PORT = 18765
Finding = tuple[str, str | None]


def check(document: Mapping[str, Any]) -> Iterator[Finding]:
    """One (name, None or what is wrong) per case, in file order."""
    limits = _limits(document.get("limits", {}))
    with _listener() as listener:
        for problem in document.get("problems", ()):
            name = str(problem.get("question_id", "problem"))
            try:
                item = cases.item(problem)
            except UserError as error:
                yield name, str(error)
                continue
            for solution in problem.get("solutions", ()):
                yield f"{name}.{solution.get('name')}", _solution(solution, item, limits, listener)
    for number, case in enumerate(document.get("checker_cases", ()), 1):
        same = same_output(case["prediction"], case["expected_output"])
        yield f"checker.{number}", None if same is case["passes"] else f"{case['prediction']!r}: got {same}"
    for case in document.get("extraction_cases", ()):
        code = program(case["response"])
        right = code.strip() == case["expected_code"].strip()
        yield f"extraction.{case['name']}", None if right else f"got {code!r}"


def _solution(solution: Mapping[str, Any], item: cases.Item, limits: Limits, listener: socket.socket) -> str | None:
    try:
        judged = judge(solution["code"], item, Rules(limits))
    except Unavailable as error:
        return str(error)
    except KeyError as error:
        return f"no field {error}"
    if (judged.status is Status.PASS) is not bool(solution["expected_pass"]):
        return f"wanted {solution['expected_status']}, got {judged.status} at test {judged.test}"
    exact = judged.status.value == solution.get("expected_status", judged.status.value)
    if not exact and not solution.get("any_failing_status_ok"):
        return f"wanted {solution['expected_status']}, got {judged.status} at test {judged.test}"
    return _escaped(solution["code"], listener)


def _escaped(code: str, listener: socket.socket) -> str | None:
    """What a program left outside: a connection, a file that its text names, a process of the sandbox's uid."""
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        pass
    else:
        return "the program reached the host's loopback"
    for folder in ("/", "/tmp", "/var/tmp", "/dev/shm", str(Path.home()), str(Path.cwd())):
        for found in Path(folder).glob("*lcb_probe*"):
            return f"the program wrote {found}"
    uid = user_id()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and os.geteuid() == 0 and _owner(process) == uid:
            return f"process {process.name} survived"
    return None


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", PORT))
    except OSError as error:
        listener.close()
        raise UserError(
            f"verify code-execution listens on port {PORT} to see programs that get out, and cannot: {error.strerror}. "
            "End what uses the port (another verify?) and try again."
        ) from error
    listener.listen()
    listener.setblocking(False)
    return listener


def _limits(wanted: Mapping[str, Any]) -> Limits:
    seconds = int(wanted.get("time_limit_s_per_test", 6))
    return Limits(
        cpu_seconds=seconds,
        wall_seconds=3.0 * seconds,
        memory_bytes=int(wanted.get("memory_mb", 1024)) * 1024**2,
        output_bytes=int(wanted.get("output_bytes", 8 * 1024**2)),
        processes=int(wanted.get("max_pids", 32)),
    )
