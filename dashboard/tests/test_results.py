"""Compression, Protection, Throughput, Frontier and Replication on a store whose numbers are worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.contents import frontier
from dashboard.contents.throughput import MISSING
from dashboard.tests.test_pages import cells_of, html, words
from orchestrator.store.tests.stores import Arm, build_store
from orchestrator.store.throughput import THROUGHPUT, read

Open = Callable[..., AppTest]
# 20 problems. recent beats random at keep 512 by 10, and ties it at 264; unprotected random solves nothing.
ARMS = (
    Arm("full", "1" * 20),
    Arm("random", "1" * 8 + "0" * 12, keep=264),
    Arm("random", "1" * 8 + "0" * 12, keep=512),
    Arm("recent", "1" * 8 + "0" * 12, keep=264),
    Arm("recent", "1" * 18 + "00", keep=512),
    Arm("random", "0" * 20, keep=264, protection="none"),
    Arm("recent", "1" * 2 + "0" * 18, keep=264, protection="none"),
)
SPEEDS = {0: (100.0, 110.0, 120.0), 1: (200.0, 220.0, 240.0)}


def measurement(arm: Arm, number: int, tokens: float, **more: Any) -> dict[str, Any]:
    """One round of an arm that takes a second."""
    cell = arm.cell
    return {
        "cell_id": cell.cell_id, "cell_label": cell.label, "model": arm.model, "policy": arm.policy,
        "policy_params": "{}", "keep": cell.budget.keep if cell.budget else None,
        "interval": cell.budget.interval if cell.budget else None,
        "protection": arm.protection if cell.budget else None, "session": "s", "round": number, "order": 0,
        "warm_up": False, "tokens": tokens, "seconds": 1.0, "request_bytes": 4096.0, "shared_bytes": 0.0,
        "prefix_cache_hit_rate": 0.0, "preemptions": 0, "gpu": "cpu", "tp": 1, "concurrency": 8,
        "pool_bytes": 1e6, "prompt_tokens": 64, "output_tokens": 512, "graph_mode": "eager", "versions": "{}", **more,
    }  # fmt: skip


def commit(store: Path, rows: list[dict[str, Any]], name: str = "r0") -> None:
    path = store / "throughput" / rows[0]["cell_id"] / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=THROUGHPUT), path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "store"
    build_store(path, ARMS)
    for place, speeds in SPEEDS.items():
        commit(path, [measurement(ARMS[place], number, tokens) for number, tokens in enumerate(speeds)])
    return path


def test_compression_lists_every_keep_with_its_paired_difference(swept: Path, open_app: Open) -> None:
    app = open_app(swept, "compression", budget="K 264 · r 16")
    assert not app.exception
    body = html(app)
    assert "K 512 · r 16" in body
    # (50 + 10 wins): recent at 512 solves 18 of 20, random 8
    assert "+50.0" in body
    assert "▲ better" in body
    assert "10 / 0 / 10" in body
    # mean full trace: prompt 40 + i, output 1000 + i over 20 problems = 1059 tokens; over 264 and 512
    assert "4.0×" in body
    assert "2.1×" in body
    # two panels for one model and task: curves, and the differences below
    assert len(app.get("vega_lite_chart") or app.get("arrow_vega_lite_chart")) == 2


def test_one_keep_is_no_curve(store: Path, open_app: Open) -> None:
    assert "one keep only (264)" in words(open_app(store, "compression"))


def test_protection_shows_the_change_and_what_is_beyond_the_reference(swept: Path, open_app: Open) -> None:
    app = open_app(swept, "protection")
    assert not app.exception
    random = cells_of(app, "random", "unprotected → prompt protected")
    assert ">0.0<" in random
    assert ">40.0<" in random
    assert "+40.0" in random
    assert "8 / 0 / 12" in random
    # without protection a tenth of the prompt is kept in every row, with it all
    assert "10.0 → 100.0" in random
    recent = cells_of(app, "recent", "unprotected → prompt protected")
    # recent gains 30 points, random 40 on the same problems
    assert "+30.0" in recent
    assert "−10.0" in recent


def test_protection_without_a_second_rule_says_what_to_add(tmp_path: Path, open_app: Open) -> None:
    made = build_store(tmp_path / "store", [Arm("full", "1" * 16), Arm("random", "1" * 16)])
    assert "No policy has both" in words(open_app(made.paths.root, "protection"))


def test_throughput_forms_ratios_within_rounds(swept: Path, open_app: Open) -> None:
    app = open_app(swept, "throughput")
    assert not app.exception
    random = cells_of(app, "random · prompt protected · K 264 · r 16", "")
    # every round is twice as fast as the full cache
    assert ">220<" in random
    assert ">2.00×<" in random
    assert "2.00–2.00" in random
    assert "200–240" in random
    assert "concurrency" in html(app)


def test_throughput_says_what_to_run_where_nothing_was_measured(store: Path, open_app: Open) -> None:
    app = open_app(store, "throughput")
    assert not app.exception
    assert MISSING in words(app)


def test_a_broken_measurement_is_named_and_preempted_rounds_do_not_count(tmp_path: Path, open_app: Open) -> None:
    root = build_store(tmp_path / "store", ARMS[:2]).paths.root
    for place, speeds in SPEEDS.items():
        rows = [measurement(ARMS[place], number, tokens) for number, tokens in enumerate(speeds)]
        rows[2]["preemptions"] = place
        commit(root, rows)
    (root / "throughput" / ARMS[0].cell.cell_id / "torn.parquet").write_bytes(b"PAR1")
    table = pa.Table.from_pylist([measurement(ARMS[0], 0, 1.0)], schema=THROUGHPUT).drop_columns("session")
    pq.write_table(table, root / "throughput" / ARMS[0].cell.cell_id / "old.parquet")
    app = open_app(root, "throughput")
    assert "torn.parquet" in words(app)
    assert "no column session" in words(app)
    random = cells_of(app, "random · prompt protected · K 264 · r 16", "too few: 2 rounds, 3 needed")
    assert ">210<" in random
    assert 'class="incomplete">1<' in random


def test_frontier_takes_accuracy_and_costs_from_one_cell(swept: Path, open_app: Open) -> None:
    app = open_app(swept, "frontier")
    assert not app.exception
    body = html(app)
    assert ">4,096<" in body
    assert ">220<" in body
    # the arm at keep 512 was not measured, so it has no speed of another budget
    wide = next(part for part in body.split("</tr>") if "K 512" in part and ">random<" in part)
    assert wide.count(">–<") == 3
    assert "At equal memory" in words(app)
    assert f">{512 + 16}<" in wide


def test_equal_memory_takes_the_largest_budget_that_fits() -> None:
    arms = pd.DataFrame(
        [
            ("a", "random · p", "random", 264.0, 100.0, 8.0),
            ("b", "recent · p", "recent", 200.0, 80.0, None),
            ("c", "recent · p", "recent", 264.0, 107.0, None),
            ("d", "recent · p", "recent", 300.0, 120.0, None),
            ("e", "rkv · p", "rkv", 264.0, 160.0, 1.0),
            ("f", "vase · p", "vase", 264.0, None, None),
        ],
        columns=["cell_id", "arm", "policy", "keep", "request_bytes", "shared_bytes"],
    ).assign(rule="prompt protected", policy_params="{}", cached_peak=1.0)
    found = frontier.fitting(arms, arms[arms["keep"] == 264], "random").set_index("cell_id")
    assert found["limit"].tolist() == [108.0] * 3
    assert found["memory"].to_dict() == {"a": 108.0, "c": 107.0, "e": 161.0}
    assert found["fits"].to_dict() == {"a": True, "c": True, "e": False}
    assert found["is_reference"].to_dict() == {"a": True, "c": False, "e": False}
    unmeasured = frontier.fitting(arms.assign(request_bytes=None), arms[arms["keep"] == 264], "random")
    assert unmeasured["memory"].tolist() == [1.0] * 4


def test_overview_names_the_fastest_arm(swept: Path, open_app: Open) -> None:
    metric = next(one for one in open_app(swept).metric if one.label == "fastest arm measured")
    assert metric.value == "2.00×"
    assert metric.proto.help.startswith("random · prompt protected · K 264 · r 16 against full")


def test_frontier_without_measurements_counts_cached_tokens(store: Path, open_app: Open) -> None:
    app = open_app(store, "frontier")
    assert "until then memory is counted in cached tokens" in words(app)
    assert ">280<" in html(app)


def test_replication_lists_every_published_number(swept: Path, open_app: Open) -> None:
    app = open_app(swept, "replication", status="not run")
    assert not app.exception
    assert "0 consistent, 0 deviates" in words(app)
    assert "evictbench replicate" in words(app)
    assert html(app).count("○ not run") >= 100


def test_reading_measurements_declares_every_column(swept: Path, tmp_path: Path) -> None:
    found = read(build_store(tmp_path / "empty", []).paths)
    assert list(found.rows.columns) == THROUGHPUT.names
    assert found.rows.empty
