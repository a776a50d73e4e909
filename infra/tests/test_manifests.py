"""Manifests of infra/: parsed, checked against published schemas, and against the commands and metrics that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from orchestrator.cli import main
from orchestrator.observers.metrics import Metrics
from orchestrator.store.paths import StorePaths

INFRA = Path(__file__).parents[1]
FIELDS = json.loads((Path(__file__).parent / "kuberay_fields.json").read_text())


def load(name: str) -> Any:
    return yaml.safe_load((INFRA / name).read_text())


def known(kind: str, value: Mapping[str, Any]) -> None:
    assert set(value) <= set(FIELDS[kind]), f"{kind} has no {set(value) - set(FIELDS[kind])}"
    for key, choices in FIELDS["enums"].items():
        assert value.get(key, choices[0]) in choices


def clusters() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "raycluster", load("kuberay/raycluster.yaml")["spec"]
    yield "rayjob", load("kuberay/rayjob.yaml")["spec"]["rayClusterSpec"]


@pytest.mark.parametrize("name", ["raycluster", "rayjob"])
def test_a_cluster_has_only_fields_of_the_operator_and_pods_that_fit_together(name: str) -> None:
    cluster = dict(clusters())[name]
    known("RayClusterSpec", cluster)
    known("AutoscalerOptions", cluster.get("autoscalerOptions", {}))
    known("HeadGroupSpec", cluster["headGroupSpec"])
    for group in cluster["workerGroupSpecs"]:
        known("WorkerGroupSpec", group)
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        known("PodSpec", pod)
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            known("Container", container)
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            resources = container["resources"]
            assert resources["requests"] == resources["limits"], "Ray reads limits, Kubernetes places by requests"
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("name", ["raycluster", "rayjob"])
def test_a_cluster_runs_our_ray_gives_drivers_time_to_drain_and_workers_shared_memory(name: str) -> None:
    cluster = dict(clusters())[name]
    assert cluster["rayVersion"] == version("ray")
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    stop = {entry["name"]: entry["value"] for entry in head["template"]["spec"]["containers"][0]["env"]}
    assert int(stop["RAY_JOB_STOP_WAIT_TIME_S"]) > 30
    for group in cluster["workerGroupSpecs"]:
        mounts = {mount["mountPath"] for mount in group["template"]["spec"]["containers"][0]["volumeMounts"]}
        assert {"/dev/shm", "/store"} <= mounts


def test_the_job_has_only_fields_of_the_operator_and_a_command_that_exists() -> None:
    job = load("kuberay/rayjob.yaml")["spec"]
    known("RayJobSpec", job)
    program, *arguments = shlex.split(job["entrypoint"])
    assert program == "evictbench"
    parses(arguments)
    assert float(arguments[arguments.index("--wait-for-nodes") + 1]) >= 600, "the driver is up before its nodes are"
    port = int(arguments[arguments.index("--metrics-port") + 1])
    ports = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["ports"]
    assert port in [entry["containerPort"] for entry in ports]


def parses(arguments: list[str]) -> None:
    """The command line is one of ours: only its job file is missing on this machine."""
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, "No such option" in result.output) == (2, False), result.output
    assert "does not exist" in result.output or "no such file" in result.output.lower(), result.output


def test_the_ray_up_file_fits_rays_own_schema() -> None:
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(load("ray-up.yaml"), schema)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_slurm_script_is_a_script_and_calls_commands_that_exist() -> None:
    script = INFRA / "slurm" / "evictbench.sbatch"
    subprocess.run(["bash", "-n", script], check=True)
    (line,) = re.findall(r"^evictbench (.+?) &$", script.read_text(), flags=re.MULTILINE)
    parses([word.replace("$job", "gone.yaml").replace("$store", "/gone") for word in shlex.split(line)])


def test_every_metric_on_the_grafana_page_exists_and_every_metric_is_on_it(tmp_path: Path) -> None:
    metrics = Metrics("job", StorePaths(tmp_path), pytest.fail)
    exported = _names(metrics.registry)
    page = json.loads((INFRA / "monitoring" / "grafana.json").read_text())
    shown = {
        name
        for panel in page["panels"]
        for target in panel["targets"]
        for name in re.findall(r"evictbench_\w+", target["expr"])
    }
    assert shown <= exported
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in exported if "_created" not in name}
    assert families == {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in shown}
    assert len({panel["id"] for panel in page["panels"]}) == len(page["panels"])


def _names(registry: CollectorRegistry) -> set[str]:
    kinds = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    return {family.name + suffix for family in registry.collect() for suffix in kinds.get(family.type, ("",))}


def test_prometheus_scrapes_the_port_that_the_manuals_name() -> None:
    targets = load("monitoring/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == ["127.0.0.1:9464"]
    assert "--metrics-port 9464" in (INFRA / "README.md").read_text()


def test_the_image_installs_the_lock_and_loads_our_plugin_alone() -> None:
    text = (INFRA / "Dockerfile").read_text()
    assert "pip install --no-deps -r infra/lock/gpu.txt" in text
    assert "VLLM_PLUGINS=evictbench" in text
