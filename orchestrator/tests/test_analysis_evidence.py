"""Looks, pools, protection, sweeps and common seeds on stores whose numbers are computed by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from orchestrator.analysis import Question, arms_table, differences_table
from orchestrator.analysis_columns import DIFFERENCES, POOLED, PROTECTION, SEEDS, SWEEP
from orchestrator.analysis_pooled import pooled_table
from orchestrator.analysis_protection import protection_table
from orchestrator.analysis_sweep import seeds_table, sweep_table
from orchestrator.errors import UserError
from orchestrator.stats.sequential import schedule
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import Arm, build_store


def picked(table: pd.DataFrame, label: str, *columns: str) -> list[Any]:
    """Values of one row."""
    return [table[column][label] for column in columns]


FULL = Arm("full", "1" * 24)
RANDOM = Arm("random", "1" * 20 + "0" * 4)
RECENT = Arm("recent", "1" * 12 + "0" * 12)


def test_looks_decide_at_their_own_levels_and_early_only_when_overwhelming(tmp_path: Path) -> None:
    # Four samples planned, two committed: the look at 2 is reached, the end is not.
    random = Arm("random", ("1" * 24,) * 2)
    clear, close = Arm("recent", ("0" * 24,) * 2), Arm("h2o", ("1" * 17 + "0" * 7,) * 2)
    build_store(tmp_path / "s", [random, clear, close], planned=(24, 4))
    table = differences_table(Reader(tmp_path / "s"), Question(looks=(1, 2))).set_index("policy")
    assert dict(table.dtypes.astype(str)) == {k: v for k, v in DIFFERENCES.items() if k != "policy"}
    plan = schedule((1, 2), 4)
    assert picked(table, "recent", "verdict", "look", "looks", "provisional") == ["worse", 1, 3, False]
    assert table.loc["recent", "alpha"] == plan[0].alpha
    # -7 of 24 is worse at 5 %, and unresolved at the level of the second look.
    assert picked(table, "h2o", "verdict", "look") == ["unresolved", 2]
    d = np.array([0.0] * 17 + [-1.0] * 7)
    half = stats.t.ppf(1 - plan[1].alpha / 2, 23) * d.std(ddof=1) / np.sqrt(24)
    assert table.loc["h2o", "high"] == pytest.approx(d.mean() + half)
    assert stats.ttest_1samp(d, 0).pvalue < 0.05


def test_before_the_first_look_there_is_no_verdict(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [Arm("random", "1" * 24), Arm("recent", "0" * 24)], planned=(24, 4))
    found = differences_table(Reader(tmp_path / "s"), Question(looks=(2,))).iloc[0]
    assert (found["verdict"], found["reason"]) == ("unresolved", "before the first look, at 2 samples")
    assert found["provisional"]
    with pytest.raises(UserError, match=r"analysis.looks: looks \[3, 2\] do not rise"):
        differences_table(Reader(tmp_path / "s"), Question(looks=(3, 2)))


def test_pooling_clusters_a_problem_across_models_and_weighs_tasks_alike(tmp_path: Path) -> None:
    other = "embedded:smollm2"
    arms = [
        Arm("random", "1" * 12),
        Arm("recent", "1" * 6 + "0" * 6),
        Arm("random", "1" * 12, model=other),
        Arm("recent", "1" * 6 + "0" * 6, model=other),
        Arm("random", "1" * 24, task="reasoner_p"),
        Arm("recent", "1" * 24, task="reasoner_p"),
    ]
    build_store(tmp_path / "s", arms)
    table = pooled_table(Reader(tmp_path / "s"), Question())
    assert dict(table.dtypes.astype(str)) == dict(POOLED)
    models = table[(table["scope"] == "models on one task") & (table["weights"] == "cells")].iloc[0]
    # Two models that agree on every problem are 12 clusters, not 24: the interval is that of one model.
    interval = stats.ttest_1samp([0.0] * 6 + [-1.0] * 6, 0).confidence_interval()
    assert (models["cells"], models["problems"], models["losses"], models["difference"]) == (2, 12, 6, -0.5)
    assert (models["low"], models["high"]) == pytest.approx((interval.low, interval.high))
    tasks = table[table["scope"] == "tasks of one model"].set_index("weights")["difference"]
    assert tasks.to_dict() == pytest.approx({"cells": -0.25, "problems": -6 / 36})
    everything = table[table["scope"] == "all"].set_index("weights")
    assert everything.loc["cells", "difference"] == pytest.approx((-0.5 - 0.5 + 0) / 3)
    assert (everything["at_keep"] == 264).all()


def test_protection_pairs_each_policy_with_itself(tmp_path: Path) -> None:
    bare = [
        replace(RANDOM, protection="none", outcomes="0" * 24),
        replace(RECENT, protection="none", outcomes="0" * 18 + "1" * 6),
    ]
    build_store(tmp_path / "s", [FULL, RANDOM, RECENT, *bare])
    table = protection_table(Reader(tmp_path / "s"))
    assert dict(table.dtypes.astype(str)) == dict(PROTECTION)
    rows = table.set_index("policy")
    d = np.array([1.0] * 12 + [0.0] * 6 + [-1.0] * 6)
    assert picked(rows, "recent", "wins", "losses", "ties") == [12, 6, 6]
    assert rows.loc["recent", "change"] == d.mean()
    interval = stats.ttest_1samp(d, 0).confidence_interval()
    assert rows.loc["recent", "low"] == pytest.approx(interval.low)
    assert picked(rows, "recent", "prompt_kept", "bare_prompt_kept") == pytest.approx([1.0, 0.1])
    beyond = d - np.array([1.0] * 20 + [0.0] * 4)
    assert rows.loc["recent", "beyond"] == pytest.approx(beyond.mean())
    assert rows.loc["recent", "beyond_high"] == pytest.approx(stats.ttest_1samp(beyond, 0).confidence_interval().high)
    assert rows["beyond"].isna()["random"]


def test_a_sweep_has_a_paired_difference_at_every_point(tmp_path: Path) -> None:
    arms = [FULL, RANDOM, RECENT, replace(RANDOM, keep=528), replace(RECENT, keep=528, outcomes="1" * 24)]
    build_store(tmp_path / "s", arms)
    reader = Reader(tmp_path / "s")
    table = sweep_table(reader)
    assert dict(table.dtypes.astype(str)) == dict(SWEEP)
    curve = table[table["policy"] == "recent"].set_index("keep")
    assert list(curve.index) == [264, 528]
    assert curve["difference"].to_dict() == pytest.approx({264: -8 / 24, 528: 4 / 24})
    assert curve["full_difference"].to_dict() == pytest.approx({264: -12 / 24, 528: 0})
    assert curve["wins"].to_dict() == {264: 0, 528: 4}
    # Problem i: a prompt of 40 + i tokens and 1000 + i of output.
    assert curve.loc[264, "compression"] == pytest.approx((40 + 11.5 + 1000 + 11.5) / 264)
    own = table[table["policy"] == "random"].set_index("keep")
    assert own["difference"].isna().all()
    assert own.loc[264, "full_difference"] == pytest.approx(-4 / 24)
    full = arms_table(reader).set_index("policy").loc["full"]
    assert full["prompt_tokens"] + full["output_tokens"] == pytest.approx(1063)


def test_common_seeds_are_measured(tmp_path: Path) -> None:
    # Arms that answer alike under each seed differ in nothing; the same answers under shuffled seeds do.
    alike = [Arm("random", ("1" * 12, "0" * 12)), Arm("recent", ("1" * 12, "0" * 12))]
    build_store(tmp_path / "s", [*alike, Arm("h2o", ("0" * 12, "1" * 12))])
    table = seeds_table(Reader(tmp_path / "s")).set_index("policy")
    assert set(SEEDS) == {*table.columns, "policy"}
    assert table["seed_correlation"].to_dict() == pytest.approx({"recent": 1.0, "h2o": -1.0})
    assert table.loc["recent", "variance_ratio"] == 0.0
    assert table.loc["recent", "samples_saved"] == pytest.approx(1.0)
    assert picked(table, "recent", "problems", "samples") == [12, 2]
