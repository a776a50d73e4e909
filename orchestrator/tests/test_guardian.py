"""The guardian finds what a killed driver leaves, also where the mark in its environment is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from orchestrator import guardian

# A driver with a guardian and one child that a session of its own would let live on; prints the child's id.
DRIVER = """
import os, subprocess, sys, time
mark, scratch, hidden = sys.argv[1:]
guardian = subprocess.Popen(
    [sys.executable, "-m", "orchestrator.guardian", mark, scratch], stdin=subprocess.PIPE, process_group=0
)
environment = dict(os.environ) if hidden == "hidden" else {**os.environ, "%s": mark}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment, process_group=0)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("mark", ["marked", "hidden"])
def test_a_killed_drivers_child_is_killed(tmp_path: Path, mark: str) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    code = DRIVER % guardian.VARIABLE
    driver = subprocess.Popen(
        [sys.executable, "-c", code, f"mark-{os.getpid()}-{mark}", str(scratch), mark],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    child = psutil.Process(int(driver.stdout.readline()))
    time.sleep(2.0)  # the guardian has looked at least once
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    _, alive = psutil.wait_procs([child], timeout=15)
    assert not alive
    deadline = time.monotonic() + 15
    while scratch.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not scratch.exists()
