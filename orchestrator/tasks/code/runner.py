"""Runs inside the sandbox, as a plain script of the standard library: one program, its answers as JSON lines.

`runner.py SITE PROGRAM`: the program reads standard input; exit status 77 when an exception escapes
`runner.py SITE PROGRAM NAME REQUESTS REPLIES`: requests {"input": "..."}, one reply line each
PROGRAM, REQUESTS and REPLIES are descriptors. State persists over the requests, as on the contest sites.
"""

import builtins
import contextlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

PRELUDE = """
import bisect, collections, copy, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from copy import *
from functools import *
from heapq import *
from itertools import *
from math import *
from operator import *
from typing import *
"""
FAILED = 77


def main() -> None:
    """Run one program as the command line says."""
    sys.path.append(sys.argv[1])
    with os.fdopen(int(sys.argv[2])) as source:
        code = source.read()
    sys.setrecursionlimit(50_000)
    # the interpreter starts without `site`, which defines them
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    space: dict[str, Any] = {"__name__": "__main__", "__file__": "program.py"}
    exec(PRELUDE, space)
    status = run(lambda: exec(compile(code, "program.py", "exec"), space))
    if status or len(sys.argv) == 3:
        leave(status)
    serve(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), space)


def leave(status: int) -> None:
    """Without waiting for threads or handlers that the program may have left."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    os._exit(status)


def run(action: Callable[[], None]) -> int:
    """0 when the action ends or exits, FAILED when an exception escapes."""
    try:
        action()
    except SystemExit:
        return 0
    except BaseException:
        traceback.print_exc(limit=5)
        return FAILED
    return 0


def serve(name: str, requests: int, replies: int, space: dict[str, Any]) -> None:
    """Call the function once per request line, each under a CPU limit of its own."""
    budget = resource.getrlimit(resource.RLIMIT_CPU)[0]
    target: Any = getattr(space["Solution"](), name) if "Solution" in space else space[name]
    for line in os.fdopen(requests):
        arguments = [json.loads(part) for part in json.loads(line)["input"].split("\n") if part.strip()]
        spent = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(spent.ru_utime + spent.ru_stime) + budget
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:
            reply = json.dumps({"result": plain(target(*arguments), True)})
        except MemoryError:
            reply = '{"error": "MemoryError"}'
        except BaseException as error:
            reply = json.dumps({"error": f"{type(error).__name__}: {error}"[:500]})
        os.write(replies, reply.encode() + b"\n")


def plain(value: Any, top: bool = False) -> Any:
    """JSON values; a top-level tuple becomes a list, a nested one stays told apart."""
    if type(value) in (bool, int, float, str, type(None)):
        return value
    if type(value) is list or (top and type(value) is tuple):
        return [plain(each) for each in value]
    if type(value) is tuple:
        return {"tuple": [plain(each) for each in value]}
    if type(value) is dict:
        return {str(key): plain(each) for key, each in value.items()}
    if type(value).__module__ == "numpy":
        return plain(value.tolist(), top)
    raise TypeError(f"a {type(value).__name__} is not a value of the tests")


if __name__ == "__main__":
    main()
