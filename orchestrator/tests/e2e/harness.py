"""Real `evictbench run` processes, what is left of them, and what they left in the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

JOB = """
name: faults
models: [{{path: "embedded:reasoner", dtype: bfloat16, max_model_len: 2048}}]
tasks: [{{name: reasoner_w, limit: {limit}}}]
arms: {{policies: [{policies}], keep: [264], interval: [16]}}
sampling: {{temperature: 0, max_tokens: {max_tokens}}}
engine: {{kind: {kind}, max_num_seqs: 16}}
execution: {{store: {store}}}
"""
_MARK = "EVICTBENCH_TEST"


@dataclass
class Site:
    """A directory with a job and its store. Every process started here is marked, so that none can hide."""

    root: Path
    limit: int = 24
    policies: str = "full, random, recent"
    max_tokens: int = 200
    kind: str = "simulated"
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def job(self) -> Path:
        path = self.root / "job.yaml"
        values = {"limit": self.limit, "policies": self.policies, "max_tokens": self.max_tokens}
        path.write_text(JOB.format(kind=self.kind, store=self.store, **values))
        return path

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Begin `evictbench run` in a process group of its own, as a terminal does."""
        command = [sys.executable, "-m", "orchestrator", "run", str(self.job), *options]
        return self.spawn(command)

    def start_with(self, create: str, stuck_seconds: float = 60.0) -> subprocess.Popen[str]:
        """The same on local processes, with engines from a factory of the tests."""
        script = (
            "import sys; from pathlib import Path; from rich.console import Console\n"
            "from orchestrator import campaign; from orchestrator.backend_local import LocalBackend\n"
            f"options = campaign.Options(stuck_seconds={stuck_seconds}, create={create!r})\n"
            f"sys.exit(campaign.run(Path({str(self.job)!r}), Console(width=300), LocalBackend, options=options))"
        )
        return self.spawn([sys.executable, "-c", script])

    def spawn(
        self, command: list[str], stdout: int | IO[str] = subprocess.PIPE, env: Mapping[str, str] = os.environ
    ) -> subprocess.Popen[str]:
        """Any command, marked."""
        environment = {**env, _MARK: self.mark, "OMP_NUM_THREADS": "1", "COLUMNS": "300"}
        return subprocess.Popen(
            command,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self.root,
            process_group=0,
        )

    def run(self, *options: str, seconds: float = 120.0) -> tuple[int, str]:
        """Exit status and output of a whole run."""
        process = self.start(*options)
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output

    def chunks(self) -> list[Path]:
        return sorted(self.store.glob("generations/*/*.parquet"))

    def until(self, condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 90.0) -> None:
        """Wait for something to become true while the run goes on."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert process.poll() is None, f"ended too early:\n{process.communicate()[0]}"
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def engines(self) -> list[int]:
        """Process ids of engine workers that have said that they are ready."""
        found = []
        for path in self.store.glob("campaigns/*/live/*.json"):
            facts = json.loads(path.read_text())
            if facts["state"] == "ready":
                found.append(facts["pid"])
        return found

    def leftovers(self, seconds: float = 20.0) -> list[str]:
        """Command lines of living marked processes, after some seconds in which they may still end."""
        deadline = time.monotonic() + seconds
        while (left := self._living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def _living(self) -> list[str]:
        entry, found = f"{_MARK}={self.mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if entry in path.read_bytes().split(b"\0"):
                    found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def rows(self) -> list[str]:
        """row_id of every committed row, sorted."""
        return sorted(row for path in self.chunks() for row in pq.read_table(path)["row_id"].to_pylist())

    def graded(self) -> list[str]:
        """row_id of every grade, sorted."""
        files = self.store.glob("grades/*/*/*.parquet")
        return sorted(row for path in files for row in pq.read_table(path)["row_id"].to_pylist())

    def attempts(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.store.glob("campaigns/*/attempts/*.json")]

    def check_complete(self, cells: int = 3) -> None:
        """Every row once, every row graded, no process left."""
        rows = self.rows()
        assert len(rows) == len(set(rows)) == cells * self.limit
        assert self.graded() == rows
        assert self.leftovers() == []


def kill(pid: int) -> None:
    """No warning, no clean-up."""
    os.kill(pid, signal.SIGKILL)
