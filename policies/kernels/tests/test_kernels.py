"""Launches every kernel under the interpreter and compiles it for sm_90, each in a process of its own.

The interpreter changes triton for a whole process, and this one may start vLLM later. To run a kernel's tests directly:
TRITON_INTERPRET=1 pytest policies/kernels/tests/launched
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
# half a minute on two idle cores, much longer beside other work
pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[3]
LAUNCHED = Path(__file__).parent / "launched"


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str] | str]:
    """What each process launched or compiled, or its output when it failed; both run at once."""
    folder = tmp_path_factory.mktemp("kernels")
    listed = {kind: folder / f"{kind}.json" for kind in ("interpreted", "compiled")}
    compiling = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    interpreting = {**compiling, "TRITON_INTERPRET": "1", "EVICTBENCH_LAUNCHES": str(listed["interpreted"])}
    commands = {
        "interpreted": (["-m", "pytest", "-q", str(LAUNCHED)], interpreting),
        "compiled": ([str(ROOT / "infra/aot.py"), "--arch", "90", "--launches", str(listed["compiled"])], compiling),
    }
    running: dict[str, subprocess.Popen[str]] = {}
    results: dict[str, set[str] | str] = {}
    try:
        for kind, (arguments, env) in commands.items():
            with (folder / f"{kind}.log").open("w") as log:
                running[kind] = subprocess.Popen(
                    [sys.executable, *arguments], cwd=ROOT, env=env, text=True, stdout=log, stderr=subprocess.STDOUT
                )
        for kind, process in running.items():
            failed = process.wait() != 0
            results[kind] = (
                (folder / f"{kind}.log").read_text() if failed else set(json.loads(listed[kind].read_text()))
            )
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    return results


@pytest.mark.parametrize("kind", ["interpreted", "compiled"])
def test_kernels(launches: dict[str, set[str] | str], kind: str) -> None:
    result = launches[kind]
    assert not isinstance(result, str), f"{kind}:\n{result}"
    assert result


def test_what_is_compiled_was_interpreted(launches: dict[str, set[str] | str]) -> None:
    """contracts.md section 7: the signatures equal those that the interpreter's tests launched."""
    compiled, interpreted = launches["compiled"], launches["interpreted"]
    assert isinstance(compiled, set)
    assert isinstance(interpreted, set)
    assert not compiled - interpreted
    kernels = [{launch.partition(",")[0] for launch in listed} for listed in (compiled, interpreted)]
    assert kernels[0] == kernels[1]
