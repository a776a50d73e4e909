"""The replication table on stores whose numbers are made by hand."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import jobs
from orchestrator.cells import Cell, SamplingRef
from orchestrator.commands.replicate import command
from orchestrator.errors import UserError
from orchestrator.replication.arms import GRID_MODELS, grid
from orchestrator.replication.columns import CAMPAIGN, COUNTS, PUBLISHED, REPLICATION
from orchestrator.replication.costs import campaign
from orchestrator.replication.counts import OUR_RULE, PUBLISHED_RULE, counts_table
from orchestrator.replication.names import MODELS, TASKS, same_model
from orchestrator.replication.page import JOBS, as_html, as_markdown, build, summary
from orchestrator.replication.probes import ProbeRun
from orchestrator.replication.published import named, published
from orchestrator.replication.table import replication_table
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import Arm, build_store
from orchestrator.store.writer import Store
from orchestrator.throughput import commit

QWEN = "Qwen/Qwen3-4B"
# MATH500, Qwen3-4B, keep 1024: random .874, SnapKV .703; 40 problems x 2 answers stand for the 500.
RANDOM = Arm("random", ("1" * 35 + "0" * 5,) * 2, keep=1024, interval=64, model=QWEN, task="math500")
FIELDS = [field.name for field in fields(Arm)]
SNAPKV = replace(RANDOM, policy="snapkv", protection="none", outcomes=("1" * 10 + "0" * 30,) * 2)


def number(numbers: pd.DataFrame, /, **wanted: Any) -> dict[str, Any]:
    """The only number with these values."""
    for name, value in wanted.items():
        numbers = numbers[numbers[name] == value]
    assert len(numbers) == 1
    return dict(numbers.iloc[0])


def test_796_numbers_of_the_paper_and_third_parties_apart() -> None:
    numbers = published(named("random-attention"))
    assert dict(numbers.dtypes.astype(str)) == dict(PUBLISHED)
    assert numbers["third_party"].value_counts().to_dict() == {False: 796, True: 155}
    assert numbers["number"].is_unique
    shares = number(numbers, table="AppD", policy="R-KV", metric="prompt_survival_per_head")
    assert (shares["value_low"], shares["value_high"], shares["rounding"]) == (0.26, 0.67, 0.005)
    assert np.isnan(number(numbers, metric="workload")["value_low"])
    with pytest.raises(UserError, match=r"unknown paper 'random-atention'.*Did you mean 'random-attention'"):
        named("random-atention")


def test_an_empty_store_says_what_would_have_to_run(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    table = replication_table(Reader(tmp_path / "s"))
    assert dict(table.dtypes.astype(str)) == dict(REPLICATION)
    assert set(table["status"]) == {"not run"}
    needed = number(table, table="Table1", model="Qwen3-4B", task="MATH500", policy="SnapKV", metric="accuracy")
    assert needed["needs"] == "Qwen/Qwen3-4B math500 snapkv K1024 none"
    # 500 problems x 2 answers x 14.2 thousand tokens at TriAttention's 1,494 tokens/s.
    assert needed["gpu_hours"] == pytest.approx(500 * 2 * 14200 / 1494 / 3600)
    arms = campaign(table)
    assert dict(arms.dtypes.astype(str)) == dict(CAMPAIGN)
    assert not arms.duplicated(["model", "task", "policy", "policy_params", "protection", "keep"]).any()
    assert arms["gpu_hours"].sum() > needed["gpu_hours"]
    assert counts_table(Reader(tmp_path / "s")).dtypes.astype(str).to_dict() == dict(COUNTS)


class AsPublished(Arm):
    """An arm under the authors' sampling."""

    @property
    def cell(self) -> Cell:
        """Temperature .6, top_p .95, no top_k."""
        return replace(super().cell, sampling=SamplingRef(0.6, 0.95, 0, 0.0, 32768))


MAIN = {"table": "Table1", "model": "Qwen3-4B", "task": "MATH500", "metric": "accuracy"}


def test_a_run_as_published_is_consistent_or_deviates(tmp_path: Path) -> None:
    random, snapkv = (AsPublished(**{name: getattr(arm, name) for name in FIELDS}) for arm in (RANDOM, SNAPKV))
    build_store(tmp_path / "s", [random, snapkv])
    table = replication_table(Reader(tmp_path / "s"))
    right, wrong = (number(table, policy=policy, **MAIN) for policy in ("Random Attention", "SnapKV"))
    assert (right["status"], right["inside"], right["reason"]) == ("consistent", True, "")
    assert right["predicted_low"] < 0.874 < right["predicted_high"]
    # A quarter of 40 problems where 70.3 % of 500 were published.
    assert (wrong["estimate"], wrong["status"], wrong["inside"]) == (0.25, "deviates", False)
    assert wrong["predicted_high"] < 0.703
    assert number(table, policy="VaSE", **MAIN)["status"] == "not run"
    page = build(Reader(tmp_path / "s"), "random-attention", "s")
    deviating = next(sheet for sheet in summary(page) if sheet.title == "Deviating")
    assert "Qwen3-4B MATH500 SnapKV K1024 unprotected" in [row[0] for row in deviating.rows]
    assert "<tr class='deviates'>" in as_html(page)
    assert "✗ deviates" in as_markdown(page)


def test_a_run_that_differs_on_purpose_says_so(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM, SNAPKV])
    table = replication_table(Reader(tmp_path / "s"))
    random, snapkv = (number(table, policy=policy, **MAIN) for policy in ("Random Attention", "SnapKV"))
    assert (random["estimate"], random["problems"], random["samples"]) == (35 / 40, 40, 2)
    # The store's cells are greedy and the published ones are not: said, with the comparison beside it.
    assert (random["status"], random["inside"], snapkv["inside"]) == ("differs by design", True, False)
    assert "temperature 0, published 0.6" in random["reason"]


def probe(arm: str, kind: str = "planted_fact", events: int = 15, **found: float) -> dict[str, Any]:
    """A row of probes.json; intervals reach .05 to both sides."""
    row: dict[str, Any] = {"probe": kind, "variant": "", "arm": arm, "fact": "all", "events": events, "n": 250}
    for name, value in {"retrieval": 0.0, "log_prob": 0.0, "r": 0.0, **found}.items():
        row |= {name: value, f"{name}_low": value - 0.05, f"{name}_high": value + 0.05}
    return row


def probe_folder(folder: Path, rows: list[dict[str, Any]], keep: int = 1088, model: str = QWEN) -> Path:
    kinds = [{"kind": "planted_fact", "distance": 1536}, {"kind": "two_facts", "distance": 1536}]
    job = {"model": {"path": model}, "arms": {"keep": [keep], "interval": [64]}, "probes": kinds}
    folder.mkdir(parents=True)
    (folder / "probes.json").write_text(json.dumps({"job": job, "results": rows}))
    return folder


PROBED = [
    probe("deleted", log_prob=-13.6),
    probe("kept", retrieval=0.99, log_prob=-0.2),
    probe("{5}", retrieval=0.03),
    probe("{1}", retrieval=0.02),
    probe("{2,5}", retrieval=0.2),
    probe("first in {3}", "two_facts", r=0.12),
    probe("first in {3}, second in {4}", "two_facts", r=0.3),
    probe("random K1088 r64 none", "passcode", 57, retrieval=0.02),
    probe("vase K1088 r64 prompt", "passcode", 57, retrieval=0.3),
    probe("rkv K1088 r64 none", "passcode", 40, retrieval=0.84),
]


def test_probe_figures_come_from_the_folder_of_a_probe(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    probed = [ProbeRun.read(probe_folder(tmp_path / "p", PROBED))]
    table = replication_table(Reader(tmp_path / "s"), probed=probed)
    needle = {"table": "Table3", "metric": "retrieval"}
    random = number(table, policy="Random Attention", **needle)
    # The published number has 250 instances of its own: the interval is wider by sqrt(2).
    assert random["predicted_high"] == pytest.approx(0.02 + 0.05 * 2**0.5 + 0.05)
    assert (random["status"], random["estimate"], random["problems"]) == ("consistent", 0.02, 250)
    assert number(table, policy="VaSE", **needle)["status"] == "not run", "protected is another arm"
    assert number(table, policy="R-KV", **needle)["reason"] == "40 events, published 57"
    figure = {"table": "Fig3a", "metric": "retrieval"}
    assert number(table, policy="{2,5}", **figure)["status"] == "deviates"
    best, second = (number(table, policy=f"{name} single KV head", **figure) for name in ("best", "second"))
    assert (best["estimate"], second["estimate"]) == (0.03, 0.02)
    assert number(table, policy="deleted everywhere", metric="mean_value_logprob")["status"] == "consistent"
    assert number(table, policy="x only in h3", metric="recall_R")["status"] == "consistent"
    assert number(table, policy="x in h3 and y in h5")["reason"] == "best heads {3},{4}, published {3},{5}"
    assert number(table, task="planted fact", metric="distance_tokens")["status"] == "consistent"
    other = [
        ProbeRun.read(probe_folder(tmp_path / "q", PROBED, keep=512)),
        ProbeRun.read(probe_folder(tmp_path / "r", PROBED, model="embedded:reasoner")),
    ]
    by_design = number(replication_table(Reader(tmp_path / "s"), probed=other[:1]), policy="{2,5}", **figure)
    assert (by_design["status"], by_design["reason"]) == ("differs by design", "keep 512, published 1088")
    foreign = number(replication_table(Reader(tmp_path / "s"), probed=other[1:]), policy="{2,5}", **figure)
    assert foreign["reason"].startswith("probe: evictbench probe jobs/paper/probes_qwen3_4b.yaml")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "probes.json").write_text("[]")
    for folder, said in (("none", "No such file"), ("t", "is not what evictbench probe writes")):
        with pytest.raises(UserError, match=said):
            ProbeRun.read(tmp_path / folder)


@pytest.mark.parametrize(
    ("published_name", "path", "equal"),
    [
        ("Qwen3-4B", "Qwen/Qwen3-4B", True),
        ("Qwen3-4B", "/models/Qwen3-4B/", True),
        ("Qwen3-4B", "someone/Qwen3-4B", False),
        ("Qwen3-4B", "Qwen/Qwen3-4B-Instruct-2507", False),
        ("Qwen3-4B", "embedded:reasoner", False),
        ("4 models", "Qwen/Qwen3-4B", False),
    ],
)
def test_only_equal_model_ids_are_compared(published_name: str, path: str, equal: bool) -> None:
    assert same_model(published_name, path) is equal


def test_the_published_count_is_derived_again_from_a_complete_grid(tmp_path: Path) -> None:
    arms = []
    for wanted in grid(GRID_MODELS):
        # Random answers all 8 problems; SnapKV none, VaSE and R-KV 7 of them, TriAttention all.
        letters = {"SnapKV": "0" * 8, "VaSE": "1" * 7 + "0", "R-KV": "1" * 7 + "0"}.get(wanted.method, "1" * 8)
        policy, rule = wanted.ours.policies[0], wanted.ours.protections(wanted.protection)[0]
        model, task = MODELS[wanted.model], TASKS[wanted.task].name
        assert wanted.keep is not None
        arms.append(Arm(policy, letters, protection=str(rule), keep=wanted.keep, interval=64, model=model, task=task))
    build_store(tmp_path / "s", arms)
    reader = Reader(tmp_path / "s")
    table = replication_table(reader)
    behind = number(table, metric="n_baseline_cells_sig_behind_RA")
    # One loss in eight is not excluded by the percentile interval: 15 SnapKV cells are behind, none is ahead.
    assert (behind["estimate"], behind["wins"], behind["ties"], behind["status"]) == (15, 0, 45, "deviates")
    ahead = number(table, metric="n_baseline_cells_sig_ahead_of_RA")
    assert (ahead["estimate"], ahead["predicted_low"]) == (0, 0)
    counts = counts_table(reader)
    everything = counts[counts["model"] == "all models"].set_index("rule")
    published_rule = pd.Series(everything.loc[PUBLISHED_RULE])
    assert published_rule[["comparisons", "behind", "ahead", "open"]].tolist() == [60, 15, 0, 45]
    # Eight problems are too few for a verdict of ours.
    assert everything["behind"][OUR_RULE] == 0


def test_pages_hold_every_number_and_escape_what_they_show(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM, SNAPKV])
    page = build(Reader(tmp_path / "s"), "random-attention", "<b>store</b>")
    markdown, html = as_markdown(page), as_html(page)
    assert sum(len(sheet.rows) for sheet in page.sheets[2:-2]) == len(page.table) == 951
    assert "&lt;b&gt;store&lt;/b&gt;" in html
    assert "<b>store" not in html
    assert markdown.count("temperature 0, published 0.6") > 1
    assert "| as published, three models | published: percentile interval excludes 0 | 60 | 31 | 1 |" in markdown
    assert "<script" not in html
    assert len(summary(page)) == 3


def test_unfinished_cells_settle_nothing(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [replace(RANDOM, outcomes=("1" * 40, "1" * 8))], planned=(40, 2))
    table = replication_table(Reader(tmp_path / "s"))
    found = number(table, table="Table1", model="Qwen3-4B", task="MATH500", policy="Random Attention")
    assert (found["status"], found["reason"], found["estimate"]) == ("not run", "unfinished: 48 rows of 80", 1.0)
    build_store(tmp_path / "t", [SNAPKV])
    assert counts_table(Reader(tmp_path / "t")).empty


def test_the_command_writes_pages_and_makes_no_store(tmp_path: Path) -> None:
    run = CliRunner().invoke
    nothing = run(command, [str(tmp_path / "none")])
    assert nothing.exit_code == 0
    assert "796 not run" in nothing.output
    assert "GPU-hours" in nothing.output
    out = tmp_path / "page.html"
    assert run(command, [str(tmp_path / "none"), "--format", "html", "--out", str(out)]).output == f"wrote {out}\n"
    assert out.read_text().startswith("<!doctype html>")
    assert not (tmp_path / "none").exists()
    failed = run(command, [str(tmp_path / "none"), "--out", str(tmp_path / "no" / "page.md")])
    assert isinstance(failed.exception, UserError)
    assert "Name a file in a directory that exists" in str(failed.exception)


def test_serving_figures_are_ratios_within_rounds_under_named_conditions(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    common = {"session": "a", "order": 0, "warm_up": False, "prefix_cache_hit_rate": 0.0, "preemptions": 0, "tp": 1}
    common |= {"model": QWEN, "policy_params": "{}", "gpu": "NVIDIA H200", "graph_mode": "compiled", "interval": 64}
    common |= {"concurrency": 128, "prompt_tokens": 1024, "output_tokens": 32768, "versions": '{"vllm":"0.32.0"}'}
    for policy, keep, seconds in (("full", None, (10.0, 11.0, 12.0)), ("random", 2048, (5.0, 5.6, 6.1))):
        arm: dict[str, Any] = {"cell_id": policy, "cell_label": policy, "policy": policy, "keep": keep}
        arm |= {"protection": keep and "prompt", "tokens": 1000.0}
        for turn, taken in enumerate(seconds):
            commit(store.paths, {**common, **arm, "round": turn, "seconds": taken})
    table = replication_table(Reader(tmp_path / "s"))
    found = number(table, table="Table4", model="Qwen3-4B", policy="Random Attention", metric="x_full")
    assert found["estimate"] == pytest.approx((10 / 5 * 11 / 5.6 * 12 / 6.1) ** (1 / 3))
    assert (found["problems"], found["wins"], found["inside"]) == (3, 3, False)
    assert found["predicted_low"] < found["low"] < found["estimate"] < found["high"] < found["predicted_high"]
    assert found["status"] == "differs by design"
    assert found["reason"] == "graph mode compiled, published eager; vLLM 0.32.0, published 0.19.0"
    speed = number(table, table="Table4", model="Qwen3-4B", policy="Full", metric="output_tok_s")
    assert (speed["low"], speed["high"]) == pytest.approx((1000 / 12, 1000 / 10))
    shorter = number(table, task="serving 1k/8k, 512 req", model="Qwen3-4B", policy="Random Attention", metric="x_full")
    assert "output 32768, published 8192; requests 128, published 512" in shorter["reason"]
    assert number(table, table="Table4", model="Qwen3-14B", policy="Full", metric="output_tok_s")["status"] == "not run"


def test_serving_figures_that_were_not_measured_have_a_price(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    table = replication_table(Reader(tmp_path / "s"))
    found = number(table, table="Table4", model="Qwen3-4B", policy="Random Attention", metric="output_tok_s")
    assert found["needs"] == "Qwen/Qwen3-4B random K2048 prompt, --prompt 1024 --output 32768 --requests 128"
    # Three rounds of 128 x 32,768 tokens at the published 2,046 tokens/s.
    assert found["gpu_hours"] == pytest.approx(3 * 128 * 32768 / 2046 / 3600)


def test_job_files_that_the_page_names_exist() -> None:
    folder = Path(next(iter(jobs.__path__)))
    named_files = {word for entry in JOBS for word in entry.split() if word.endswith(".yaml")}
    assert named_files == {file.name for file in (folder / "paper").glob("*.yaml")}
