"""What a user may ask of a cluster that cannot be: each is refused with place, reason and the next step."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator import campaign, cluster
from orchestrator.backend import Launch
from orchestrator.errors import UserError
from orchestrator.messages import Report, WorkerState
from orchestrator.store.writer import Store
from orchestrator.tests.doubles import SPEC
from orchestrator.tests.e2e.harness import Site
from orchestrator.worker_process import open_worker, visible_store
from workers import gpus


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, limit=16, policies="random")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_an_address_where_nothing_answers_is_refused_at_once_and_nothing_of_ray_is_started() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        UserError, match=f"nothing answers at --address {address}: Connection refused. Is the cluster up"
    ):
        cluster.connect(address)


@pytest.mark.parametrize("address", ["http://head:8265", "head", "ray://head:10001"])
def test_an_address_of_another_kind_says_which_one_is_meant(address: str) -> None:
    with pytest.raises(UserError, match=r"HOST:PORT of a cluster's head .* evictbench submit"):
        cluster.connect(address)


def test_a_store_that_a_node_does_not_see_names_the_node_and_leaves_nothing_there(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    with pytest.raises(
        UserError, match=f"node {platform.node()} does not see the store {place}: .* under the same path"
    ):
        visible_store(str(place))
    assert not place.exists()


def started(tmp_path: Path, model: str, given: tuple[str, ...] = ()) -> Report:
    """The report of a worker whose start has ended."""
    store = Store.open(tmp_path / "store")
    create = "orchestrator.tests.doubles:create"
    launch = Launch(
        "w1", replace(SPEC, model=model), str(store.paths.root), "job", str(tmp_path / "log"), create=create
    )
    loop = open_worker(launch, given)
    for _ in range(100):
        report = loop.report(0.1)
        if report.state is not WorkerState.LOADING:
            return report
    raise AssertionError(report)


def test_a_node_without_the_model_files_says_so_and_another_one_may_have_them(tmp_path: Path) -> None:
    report = started(tmp_path, str(tmp_path / "gone"))
    assert (report.state, report.fatal) == (WorkerState.FAILED, False)
    assert report.detail == (
        f"node {platform.node()} does not have the model files {tmp_path / 'gone'}. Put them on every node."
    )


def test_a_worker_whose_gpu_is_held_reports_which_and_by_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = gpus.Gpu("3", "GPU-3", "NVIDIA H200", 140 * gpus.GIB, 9 * gpus.GIB, (gpus.Holder(42, "python", None),))
    monkeypatch.setattr(gpus, "here", lambda: (held,))
    monkeypatch.setattr(gpus.require_free, "__defaults__", (0.0,))
    report = started(tmp_path, "m", ("3",))
    assert (report.state, report.busy, report.fatal) == (WorkerState.FAILED, ("GPU-3",), False)
    assert "has 9.0 of 140.0 GiB free" in report.detail
    assert "held by pid 42 (python)" in report.detail


def test_a_second_job_under_a_running_campaigns_name_is_refused_with_the_difference(site: Site) -> None:
    campaign.submit(campaign.prepare(site.job))
    site.max_tokens = 100
    other = campaign.prepare(site.job)
    now = datetime.now(UTC)
    facts = {"pid": 42, "host": "h1"}
    other.campaign.driver_beat("d", {**facts, "updated_at": now.isoformat()})
    before = other.campaign.resolved()
    with pytest.raises(
        UserError, match=r"running \(pid 42 on h1\) as another job: sampling.max_tokens: 200 -> 100. Give"
    ):
        campaign.submit(other)
    assert other.campaign.resolved() == before
    other.campaign.driver_beat("d", {**facts, "updated_at": (now - timedelta(minutes=1)).isoformat()})
    assert "sampling.max_tokens: 200 -> 100" in campaign.submit(other)


def test_the_same_job_twice_at_once_is_no_mistake(site: Site) -> None:
    prepared = campaign.prepare(site.job)
    campaign.submit(prepared)
    prepared.campaign.driver_beat("d", {"pid": 42, "host": "h1", "updated_at": datetime.now(UTC).isoformat()})
    assert campaign.submit(prepared) == []


def test_a_budget_that_ends_before_one_chunk_is_refused_before_anything_starts(site: Site) -> None:
    job = site.job
    job.write_text(job.read_text().replace("execution: {", "execution: {budget: {gpu_hours: 0.001}, "))
    console = Console(file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    with pytest.raises(UserError, match=r"budget: 0.001 GPU-hours are too few for one chunk: .* at least 0.0084"):
        campaign.run(job, console, lambda: pytest.fail("nothing may start"))
    assert not list(site.store.glob("campaigns/*"))
