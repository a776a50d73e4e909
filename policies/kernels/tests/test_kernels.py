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
ROOT = Path(__file__).parents[3]
LAUNCHED = Path(__file__).parent / "launched"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[subprocess.Popen[str], Path]]:
    """Both at once, each with the file in which it lists its launches."""
    folder = tmp_path_factory.mktemp("kernels")
    interpreted, compiled = folder / "interpreted.json", folder / "compiled.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    interpreting = {**environment, "TRITON_INTERPRET": "1", "EVICTBENCH_LAUNCHES": str(interpreted)}
    commands = {
        "interpreted": ([sys.executable, "-m", "pytest", "-q", str(LAUNCHED)], interpreting, interpreted),
        "compiled": (
            [sys.executable, str(ROOT / "infra/aot.py"), "--arch", "90", "--launches", str(compiled)],
            environment,
            compiled,
        ),
    }
    return {
        kind: (
            subprocess.Popen(
                command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ),
            listed,
        )
        for kind, (command, env, listed) in commands.items()
    }  # fmt: skip


@pytest.fixture(scope="module")
def launches(processes: dict[str, tuple[subprocess.Popen[str], Path]]) -> dict[str, set[str] | str]:
    """The launches of each process, or its output when it failed."""
    results: dict[str, set[str] | str] = {}
    for kind, (process, listed) in processes.items():
        output, _ = process.communicate()
        results[kind] = set(json.loads(listed.read_text())) if process.returncode == 0 else output
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
