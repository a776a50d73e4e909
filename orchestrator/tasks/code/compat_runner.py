"""LiveCodeBench's own way to run a program, inside the sandbox: one process, a mocked standard input, a function call.

`compat_runner.py SITE PROGRAM NAME SECONDS REQUESTS REPLIES`: one request line {"tests": [[input, output], ...]}, one
reply line with a code per test that ran: true right, -2 wrong, -3 late, -4 error. What differs from a real process is
kept on purpose, since published numbers carry it: standard input is not iterable, its buffer repeats the first line,
`read` returns everything again, standard output has no buffer, `quit` is gone, `global` fails, and wanted outputs lie
in the program's own process. Rules of LiveCodeBench 28fef95, written anew from their description.
"""

import ast
import builtins
import contextlib
import io
import json
import os
import signal
import sys
import types
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

RIGHT, WRONG, LATE, ERROR = True, -2, -3, -4
# In this order: `operator` and `io` hide names of earlier ones, and `builtins` brings the real `open` back.
STARS = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
    "builtins typing"
)
NAMES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
)
PRELUDE = "".join(f"from {name} import *\n" for name in STARS.split()) + f"import {NAMES.replace(' ', ', ')}\n"
TAKEN = {
    "os": "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames truncate "
    "replace unlink fchmod fchown chmod chown chroot lchown getcwd chdir",
    "shutil": "rmtree move chown",
    "subprocess": "Popen",
}


class Late(Exception):
    """The alarm of a test."""


class Stdin:
    """What the official mock answers to."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = iter(text.split("\n"))
        self.buffer = Buffer(text)

    def read(self, *_: Any) -> str:
        return self._text

    def readline(self, *_: Any) -> str:
        return next(self._lines)

    def readlines(self, *_: Any) -> list[str]:
        return self._text.split("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(io.StringIO(self._text), name)


class Buffer:
    """Its readline never moves on."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()

    def read(self, *_: Any) -> bytes:
        return self._data

    def readline(self, *_: Any) -> bytes:
        return self._data.split(b"\n")[0] + b"\n"

    def readlines(self, *_: Any) -> list[bytes]:
        return [line + b"\n" for line in self._data.split(b"\n")]


def main() -> None:
    """Run all tests and reply once."""
    sys.path.append(sys.argv[1])
    with os.fdopen(int(sys.argv[2])) as source:
        code = source.read()
    name, seconds = sys.argv[3], int(sys.argv[4])
    with os.fdopen(int(sys.argv[5])) as requests:
        tests = json.loads(requests.readline())["tests"]
    reply, write, leave = int(sys.argv[6]), os.write, os._exit
    sys.setrecursionlimit(50_000)
    signal.signal(signal.SIGALRM, _alarm)
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401, PLC0415  loaded in the official judge, and unable to load once names are gone
    take_away()
    codes = (functional if name else program)(code, tests, seconds, name)
    write(reply, json.dumps(codes).encode() + b"\n")
    leave(0)


def take_away() -> None:
    """Names that the official guard removes."""
    for module, names in TAKEN.items():
        holder = __import__(module)
        for name in names.split():
            setattr(holder, name, None)
    builtins.quit = None  # type: ignore[assignment]


def program(code: str, tests: list[Any], seconds: int, _: str) -> list[Any]:
    """The program as a function without arguments, called once per test."""
    try:
        target = load(as_function(code), "wrapped_function", seconds)
    except Exception:
        return [ERROR]
    codes: list[Any] = []
    # under its official name: programs that look for it through the frames find it, as they do there
    for given, gt_out in tests:
        printed, problem = call_program(target, given, seconds)
        codes.append(problem if problem is not None else same_lines(printed, gt_out))
        if codes[-1] is not RIGHT:
            break
    return codes


def call_program(target: Callable[[], Any], given: str, seconds: int) -> tuple[str, int | None]:
    """(what was printed, problem or None)."""
    kept = sys.stdin, sys.stdout, builtins.open
    sys.stdin, sys.stdout = Stdin(given), io.StringIO()
    builtins.open = lambda *_, **__: io.StringIO(given)  # type: ignore[assignment]
    problem = None
    try:
        signal.alarm(seconds)
        target()
    except SystemExit:
        pass
    except Late:
        problem = LATE
    except Exception:
        problem = ERROR
    finally:
        signal.alarm(0)
        written = sys.stdout
        sys.stdin, sys.stdout, builtins.open = kept
    return written.getvalue() if isinstance(written, io.StringIO) else "", problem


def functional(code: str, tests: list[Any], seconds: int, name: str) -> list[Any]:
    """A method of `Solution` (or a function), called on the JSON values of each test."""
    try:
        target = load(f"{PRELUDE}\n{code}", name, seconds)
    except Exception:
        return [ERROR]
    codes: list[Any] = []
    for given, wanted in tests:
        try:
            arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
            signal.alarm(seconds)
            result = target(*arguments)
            signal.alarm(0)
            if isinstance(result, tuple):
                result = list(result)
            codes.append(RIGHT if result == json.loads(wanted) else WRONG)
        except Late:
            codes.append(LATE)
        except Exception:
            codes.append(ERROR)
        finally:
            signal.alarm(0)
        if codes[-1] is not RIGHT:
            break
    return codes


def load(code: str, name: str, seconds: int) -> Callable[..., Any]:
    """Execute the text as a module and take `name` from it, or from its `Solution`."""
    module = types.ModuleType("tmp_sol")
    signal.alarm(seconds)
    try:
        exec(compile(code, "<string>", "exec"), module.__dict__)
    finally:
        signal.alarm(0)
    holder: Any = module.Solution() if hasattr(module, "Solution") and name != "wrapped_function" else module
    found: Callable[..., Any] = getattr(holder, name)
    return found


def as_function(code: str) -> str:
    """Imports stay outside, everything else becomes the body; only a main guard that stands last is opened."""
    body = ast.parse(code).body
    if body and isinstance(body[-1], ast.If) and ast.unparse(body[-1].test) in ("__name__ == '__main__'",):
        body = [*body[:-1], *body[-1].body]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    rest = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
    wrapped = ast.FunctionDef(
        name="wrapped_function",
        args=ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]),
        body=rest or [ast.Pass()],
        decorator_list=[],
    )
    tree = ast.Module(body=[*imports, wrapped], type_ignores=[])
    return f"{PRELUDE}\n{ast.unparse(ast.fix_missing_locations(tree))}"


def same_lines(printed: str, wanted: str) -> Any:
    """Line by line: equal, or equal as decimals."""
    a, b = ([line.strip() for line in text.strip().split("\n")] for text in (printed, wanted))
    if len(a) != len(b):
        return WRONG
    return RIGHT if all(x == y or same_decimals(x, y) for x, y in zip(a, b, strict=True)) else WRONG


def same_decimals(a: str, b: str) -> bool:
    """Whether both lines are the same decimals."""
    try:
        return [Decimal(part) for part in a.split()] == [Decimal(part) for part in b.split()]
    except (InvalidOperation, ValueError):
        return False


def _alarm(*_: Any) -> None:
    raise Late


if __name__ == "__main__":
    main()
