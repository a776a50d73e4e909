"""Submitting to a real Ray cluster through its job API."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.tests.e2e.harness import Site

pytestmark = pytest.mark.slow

_BIN = Path(sys.executable).parent
_POLICY = """
from dataclasses import dataclass
from policies.base import Scorer

@dataclass(frozen=True)
class Mine(Scorer):
    name = "mine"
    scorer = "policies.scoring.draws:per_head"
    rowwise = True
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A one-node cluster of its own, on ports that the system chose, with the job API on loopback."""
    with tempfile.TemporaryDirectory(prefix="evr", dir=os.environ.get("RAY_TMPDIR", "/tmp")) as scratch:
        environment = {**os.environ, "PATH": f"{_BIN}:{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}
        environment |= {"OMP_NUM_THREADS": "1", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        port = _free_port()
        command = [str(_BIN / "ray"), "start", "--head", "--block", "--port", str(_free_port())]
        command += ["--node-ip-address", "127.0.0.1", "--dashboard-host", "127.0.0.1", "--dashboard-port", str(port)]
        command += [
            "--num-cpus",
            "2",
            "--temp-dir",
            scratch,
            "--disable-usage-stats",
            "--object-store-memory",
            "80000000",
        ]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        family = psutil.Process(process.pid)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api/version", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            children = family.children(recursive=True)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


def _wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # it answers: Ray asks for its token
        except OSError:
            assert process.poll() is None, "the cluster ended"
            assert time.monotonic() < deadline, "the cluster's job API does not answer"
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "mine.py").write_text(_POLICY)
    return Site(tmp_path, policies="full, random, 'mine.py:Mine'")


def call(site: Site, command: str, address: str, *options: str) -> tuple[int, str]:
    process = site.spawn([sys.executable, "-m", "orchestrator", command, str(site.job), "--address", address, *options])
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_a_job_with_a_policy_file_runs_on_the_cluster_and_submitting_again_resumes(site: Site, address: str) -> None:
    status, output = call(site, "submit", address)
    assert status == 0, output
    assert "Submitted faults-1" in output
    assert "Everything is committed and graded" in output
    assert len(site.rows()) == len(set(site.rows())) == 3 * site.limit
    status, output = call(site, "submit", address)
    assert status == 0, output
    assert "Submitted faults-2" in output
    assert "nothing to run" in output
    assert "nothing to run" in call(site, "logs", address)[1]


def test_a_running_campaign_is_not_submitted_twice_and_leaving_it_does_not_stop_it(site: Site, address: str) -> None:
    site.limit = 96
    process = site.spawn([sys.executable, "-m", "orchestrator", "submit", str(site.job), "--address", address])
    site.until(site.chunks, process, seconds=120)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "goes on" in output
    status, output = call(site, "submit", address)
    assert status == 2
    assert "of campaign 'faults' is running" in output
    assert site.spawn([sys.executable, "-m", "orchestrator", "cancel", str(site.job)]).wait(60) == 0
    status, output = call(site, "logs", address, "--follow")
    assert status == 130, output
    assert "Stopped (cancelled)" in output
    assert 0 < len(site.chunks()) < 36


def test_what_only_this_machine_means_is_refused_before_anything_travels(site: Site, address: str) -> None:
    status, output = call(site, "submit", address, "--store", "here")
    assert status == 2
    assert "the store 'here' is relative" in output
    assert not list(site.root.glob("here"))
