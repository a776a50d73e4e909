"""Engines on a real Ray cluster of several raylets with invented GPUs: who gets which, and that all come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator import fleet
from orchestrator.backend import Launch, Lost
from orchestrator.backend_ray import RayBackend
from orchestrator.messages import Report, Seat, WorkerState
from orchestrator.store.writer import Store
from orchestrator.tests.doubles import SPEC

pytestmark = pytest.mark.slow

PLACE_SECONDS = 4.0
JOB = """
name: placed
models: [{{path: "embedded:reasoner", dtype: bfloat16, max_model_len: 2048}}]
tasks: [{{name: reasoner_w, limit: 16}}]
arms: {{policies: [random], keep: [264], interval: [16]}}
sampling: {{temperature: 0, max_tokens: 200}}
engine: {{kind: simulated, max_num_seqs: 16}}
resources: {{tp: {tp}, pp: {pp}, gpu: {gpu}}}
execution: {{store: {store}}}
"""


class PatientClock:
    """Ray gives each of its processes 30 s to come up; on a busy machine they need longer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without CPUs, a node of eight H200 and one of eight A100; one CPU among them, for grading."""
    memory = 80 * 1024**2
    patch = pytest.MonkeyPatch()
    patch.setattr(ray._private.node, "time", PatientClock())
    # Agents without the dashboard's modules: most of what a node's start costs.
    patch.setattr(ray._private.utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted"))
    made = Cluster(True, head_node_args={"num_cpus": 0, "object_store_memory": memory, "include_dashboard": False})
    for cpus, kind in ((0, "H200"), (1, "A100")):
        labels = {"ray.io/accelerator-type": kind}
        made.add_node(num_cpus=cpus, num_gpus=8, object_store_memory=memory, labels=labels)
    yield made
    made.shutdown()
    patch.undo()


@pytest.fixture(scope="module")
def backend(cluster: Cluster) -> Iterator[RayBackend]:
    made = RayBackend(cluster.address, place_seconds=PLACE_SECONDS)
    yield made
    made.close()


class Bench:
    """Starts workers and waits for what they say."""

    def __init__(self, backend: RayBackend, folder: Path) -> None:
        self.backend, self.store, self.count = backend, Store.open(folder), 0
        self.nodes = [machine.name for machine in fleet.usable(backend.machines(), "any")]

    def start(self, tp: int, *seats: Seat, pp: int = 1, create: str = "orchestrator.tests.doubles:create") -> str:
        self.count += 1
        name = f"{self.store.paths.root.name}-{self.count}"
        spec = replace(SPEC, tp=tp, pp=pp, model="none", nodes=len(seats) or 1)
        root = self.store.paths.root
        launch = Launch(name, spec, str(root), "job", str(root / f"{name}.log"), threads=1, create=create)
        self.backend.start(launch, seats[0].node if seats else self.nodes[0], seats)
        return name

    def ready(self, name: str) -> tuple[str, ...]:
        """The GPUs of a worker that came up."""
        report = self.until(name, Report, lambda r: r.state is not WorkerState.LOADING)
        assert report.provenance is not None, report.detail
        return tuple(report.provenance.extra["gpus"])

    def end(self, *names: str) -> None:
        for name in names:
            self.backend.stop(name, hard=True)
        for name in names:
            self.until(name, Lost)

    def until(self, name: str, kind: type, fits: Any = lambda _: True, seconds: float = 180.0) -> Any:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in self.backend.poll(0.2):
                if isinstance(message, kind) and getattr(message, "worker", "") == name and fits(message):
                    return message
        raise AssertionError(f"{name} never sent a {kind.__name__} that fits")


@pytest.fixture
def bench(backend: RayBackend, tmp_path: Path) -> Bench:
    return Bench(backend, tmp_path / "store")


def all_free(seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ray.available_resources().get("GPU") == ray.cluster_resources()["GPU"]:
            return True
        time.sleep(0.1)
    return False


def test_nodes_are_told_apart_by_label_and_the_head_holds_no_engine(backend: RayBackend) -> None:
    machines = backend.machines()
    assert sorted((m.units, m.gpu or "") for m in machines) == [(0, ""), (8, "A100"), (8, "H200")]
    assert [m.units for m in fleet.usable(machines, "any")] == [8, 8]
    assert [m.gpu for m in fleet.usable(machines, "h200")] == ["H200"]


def test_engines_of_one_node_get_their_own_gpus_and_give_them_back(bench: Bench) -> None:
    names = [bench.start(tp) for tp in (1, 2, 4)]
    given = [bench.ready(name) for name in names]
    assert [len(gpus) for gpus in given] == [1, 2, 4]
    assert len({gpu for gpus in given for gpu in gpus}) == 7
    bench.end(*names)
    assert all_free()
    name = bench.start(8)
    assert sorted(bench.ready(name)) == [str(gpu) for gpu in range(8)]
    bench.end(name)
    assert all_free()


def test_an_engine_over_two_nodes_has_its_ranks_where_the_scheduler_said(bench: Bench) -> None:
    seats = [Seat(node, 4) for node in bench.nodes]
    name = bench.start(4, *seats, pp=2, create="infra.tests.ranks:create")
    ranks = bench.ready(name)
    assert [rank.partition(":")[0] for rank in ranks] == [node for node in bench.nodes for _ in range(4)]
    assert len(set(ranks)) == 8
    bench.end(name)
    assert all_free()


def holder(node: str) -> Any:
    """Somebody else's actor with one GPU of a node."""
    made = ray.remote(num_gpus=1, num_cpus=0)(type("Holder", (), {"up": lambda self: True}))
    actor = made.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
    assert ray.get(actor.up.remote(), timeout=120)
    return actor


def test_a_place_that_does_not_come_in_time_is_given_up_and_nothing_leaks(bench: Bench) -> None:
    other = holder(bench.nodes[1])
    wide = bench.start(8, Seat(bench.nodes[0], 8), Seat(bench.nodes[1], 8), pp=2)
    lost = bench.until(wide, Lost)
    assert lost.unplaced
    assert lost.reason.startswith("no place within 4 s: node ")
    assert "has 7 of 8 GPUs free; other work holds the rest" in lost.reason
    narrow = bench.start(8, Seat(bench.nodes[1], 8))
    assert "has 7 of 8 GPUs free" in bench.until(narrow, Lost).reason
    assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}
    ray.kill(other)
    assert all_free()


def test_a_group_that_is_stopped_before_it_is_granted_is_removed(bench: Bench) -> None:
    other = holder(bench.nodes[0])
    name = bench.start(8, Seat(bench.nodes[0], 8), Seat(bench.nodes[1], 8), pp=2)
    bench.end(name)
    assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}
    ray.kill(other)
    assert all_free()


def test_resources_are_whole_again_after_many_starts_and_stops(bench: Bench) -> None:
    for turn in range(10):
        names = [bench.start(2), bench.start(4, Seat(bench.nodes[1], 4))]
        if turn % 2:
            bench.ready(names[0])
        bench.end(*names)
    assert all_free()


def run(cluster: Cluster, folder: Path, gpu: str, tp: int = 1, pp: int = 1) -> subprocess.CompletedProcess[str]:
    (folder / "job.yaml").write_text(JOB.format(tp=tp, pp=pp, gpu=gpu, store=folder / "store"))
    command = [sys.executable, "-m", "orchestrator", "run", str(folder / "job.yaml"), "--address", cluster.address]
    environment = {**os.environ, "COLUMNS": "300", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, cwd=folder, env=environment
    )


def test_a_campaign_on_the_cluster_records_the_gpus_of_every_row(cluster: Cluster, tmp_path: Path) -> None:
    done = run(cluster, tmp_path, "A100", tp=2)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for path in tmp_path.glob("store/generations/*/*.parquet") for row in pq.read_table(path).to_pylist()]
    assert {row["gpu_ids"] for row in rows} == {"0,1"}
    assert len(rows) == 16


@pytest.mark.parametrize(
    ("pp", "gpu", "said"),
    [
        (16, "A100", "an engine of tp 1 x pp 16 needs 16 GPUs on one node; the largest node, "),
        (1, "H20", "no node has a H20; the cluster has A100 (1 node), H200 (1 node), no GPU (1 node). Did you mean"),
    ],
)
def test_what_can_never_run_is_refused_before_anything_starts(
    cluster: Cluster, tmp_path: Path, pp: int, gpu: str, said: str
) -> None:
    done = run(cluster, tmp_path, gpu, pp=pp)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("store/campaigns/*/live/*"))


def test_another_ray_or_python_on_the_cluster_is_refused_with_both_versions(cluster: Cluster, tmp_path: Path) -> None:
    key, space = b"CLUSTER_METADATA", b"cluster"
    client = ray._private.worker.global_worker.gcs_client
    before = client.internal_kv_get(key, space)
    facts = json.loads(before)
    client.internal_kv_put(key, json.dumps({**facts, "python_version": "3.9.1"}).encode(), True, space)
    try:
        done = run(cluster, tmp_path, "any")
    finally:
        client.internal_kv_put(key, before, True, space)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "3.9.1" in done.stderr
    assert ".".join(map(str, sys.version_info[:3])) in done.stderr
