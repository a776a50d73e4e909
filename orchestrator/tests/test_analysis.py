"""Arms and differences of stores whose numbers are computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy import stats

from orchestrator.analysis import Question, Selection, arms_table, differences_table, simulated_cells
from orchestrator.analysis_columns import ARMS, DIFFERENCES
from orchestrator.errors import UserError
from orchestrator.stats.verdict import Rule
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import PROVENANCE, Arm, build_store
from orchestrator.store.writer import Store

FULL = Arm("full", "1" * 24)
RANDOM = Arm("random", "1" * 20 + "0nt0")
BARE = Arm("random", "0" * 22 + "11", protection="none")
RECENT = Arm("recent", "1" * 12 + "0" * 12)


def row(table: pd.DataFrame, arm: Arm) -> dict[str, Any]:
    """The only row of an arm."""
    found = table[table["cell_id"] == arm.cell.cell_id]
    assert len(found) == 1
    return dict(found.iloc[0])


def test_arms_by_hand(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM, BARE])
    table = arms_table(Reader(tmp_path / "s"))
    assert dict(table.dtypes.astype(str)) == dict(ARMS)
    assert list(table["policy"]) == ["full", "random", "random"]
    random = row(table, RANDOM)
    wilson = stats.binomtest(20, 24).proportion_ci(method="wilson")
    assert random["accuracy"] == pytest.approx(20 / 24)
    assert (random["low"], random["high"]) == pytest.approx((wilson.low, wilson.high))
    assert (random["problems"], random["samples"], random["rows"], random["done"]) == (24, 1, 24, 1.0)
    assert [random[name] for name in ("wrong", "no_answer", "truncated", "error")] == [2 / 24, 1 / 24, 1 / 24, 0]
    # Problem 22 was cut at 1500 tokens; the others made 1000 + i.
    assert random["output_tokens"] == pytest.approx((sum(range(1000, 1024)) - 1022 + 1500) / 24)
    assert (random["events"], random["never_evicts"], random["cached_peak"]) == (51.5, 0.0, 280)
    assert (row(table, BARE)["prompt_kept_mean"], row(table, BARE)["prompt_kept_min"]) == pytest.approx((0.1, 0.05))
    full = row(table, FULL)
    assert (full["accuracy"], full["high"]) == (1.0, 1.0)
    assert math.isnan(full["events"])
    assert pd.isna(full["cached_peak"])


def test_differences_by_hand(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM, BARE, RECENT])
    table = differences_table(Reader(tmp_path / "s"))
    assert dict(table.dtypes.astype(str)) == dict(DIFFERENCES)
    assert RANDOM.cell.cell_id not in set(table["cell_id"])
    bare = row(table, BARE)
    d = [-1] * 20 + [0, 0, 1, 1]
    interval = stats.ttest_1samp(d, 0).confidence_interval()
    assert bare["difference"] == pytest.approx(-18 / 24)
    assert (bare["low"], bare["high"]) == pytest.approx((max(-1, interval.low), interval.high))
    assert (bare["interval_kind"], bare["verdict"], bare["provisional"]) == ("t", "worse", False)
    assert (bare["wins"], bare["losses"], bare["ties"]) == (2, 20, 2)
    assert bare["p_sign"] == pytest.approx(stats.binomtest(2, 22).pvalue)
    assert (bare["reference_policy"], bare["reference_protection"], bare["protection"]) == ("random", "prompt", "none")
    recent = row(table, RECENT)
    # The family holds both contenders and not the full cache: the larger p is multiplied by 1, the smaller by 2.
    assert (recent["family_size"], pd.isna(row(table, FULL)["p_holm"])) == (2, True)
    assert bare["p_holm"] == pytest.approx(2 * bare["p_signflip"])
    assert recent["p_holm"] == pytest.approx(max(2 * bare["p_signflip"], recent["p_signflip"]))
    full = row(table, FULL)
    assert (full["at_keep"], full["verdict"]) == (264, "unresolved")
    assert full["reason"].startswith("too few: 4 problems differ")


def test_the_reference_under_each_arms_own_rule(tmp_path: Path) -> None:
    recent_bare = Arm("recent", "0" * 24, protection="none")
    build_store(tmp_path / "s", [FULL, RANDOM, BARE, RECENT, recent_bare])
    table = differences_table(Reader(tmp_path / "s"), Question(same_protection=True))
    assert row(table, recent_bare)["reference_id"] == BARE.cell.cell_id
    assert row(table, RECENT)["reference_id"] == RANDOM.cell.cell_id
    assert row(table, FULL)["reference_id"] == RANDOM.cell.cell_id
    assert {BARE.cell.cell_id, RANDOM.cell.cell_id}.isdisjoint(table["cell_id"])


def test_arms_pair_only_at_equal_keep_interval_model_and_task(tmp_path: Path) -> None:
    others = [
        replace(RECENT, keep=128),
        replace(RECENT, interval=32),
        replace(RECENT, task="reasoner_p"),
        replace(RECENT, model="embedded:smollm2"),
    ]
    build_store(tmp_path / "s", [FULL, RANDOM, replace(RANDOM, keep=128), *others])
    table = differences_table(Reader(tmp_path / "s"))
    pairs = set(zip(table["policy"], table["at_keep"], table["at_interval"], strict=True))
    assert pairs == {("full", 264, 16), ("full", 128, 16), ("recent", 128, 16)}


def test_several_samples_cluster_by_problem(tmp_path: Path) -> None:
    random = Arm("random", ("1" * 12, "1" * 6 + "0" * 6, "1" * 12, "0" * 12))
    recent = Arm("recent", ("1" * 12, "0" * 12))
    build_store(tmp_path / "s", [random, recent], planned=None)
    arm = row(arms_table(Reader(tmp_path / "s")), random)
    means = [0.75] * 6 + [0.5] * 6
    interval = stats.ttest_1samp(means, 0).confidence_interval()
    assert (arm["accuracy"], arm["samples"], arm["interval_rule"]) == (0.625, 4, "t")
    assert (arm["low"], arm["high"]) == pytest.approx((interval.low, interval.high))
    found = row(differences_table(Reader(tmp_path / "s")), recent)
    assert (found["difference"], found["samples"], found["reference_samples"]) == (-0.125, 24, 48)
    assert (found["wins"], found["losses"], found["ties"]) == (0, 6, 6)


def test_only_problems_complete_in_both_arms_count_and_the_rest_is_provisional(tmp_path: Path) -> None:
    done = Arm("random", ("1" * 24, "1" * 24))
    half = Arm("recent", ("0" * 24, "0" * 16))
    build_store(tmp_path / "s", [done, half, replace(half, policy="h2o", outcomes="")], planned=(24, 2))
    reader = Reader(tmp_path / "s")
    table = differences_table(reader)
    found = row(table, half)
    assert (found["problems"], found["excluded"], found["provisional"]) == (16, 8, True)
    assert (found["verdict"], found["difference"]) == ("worse", -1.0)
    arms = arms_table(reader)
    assert (row(arms, half)["done"], row(arms, half)["complete"], row(arms, done)["complete"]) == (40 / 48, False, True)
    waiting = arms[arms["policy"] == "h2o"].iloc[0]
    assert (waiting["rows"], waiting["done"], waiting["keep"], waiting["protection"]) == (0, 0.0, 264, "prompt")
    assert math.isnan(waiting["accuracy"])
    nothing = table[table["policy"] == "h2o"].iloc[0]
    assert (nothing["problems"], nothing["verdict"], nothing["reason"]) == (
        0,
        "unresolved",
        "too few: 0 problems, 10 needed",
    )


def test_errors_and_missing_grades_never_count_as_wrong(tmp_path: Path) -> None:
    arm = Arm("recent", "1" * 20 + "eeuu")
    build_store(tmp_path / "s", [RANDOM, arm])
    reader = Reader(tmp_path / "s")
    found = row(arms_table(reader), arm)
    assert (found["accuracy"], found["problems"], found["graded"], found["rows"]) == (1.0, 20, 22, 24)
    assert (found["error"], found["complete"]) == (2 / 22, False)
    difference = row(differences_table(reader), arm)
    assert (difference["problems"], difference["ties"], difference["excluded"]) == (20, 20, 4)


def test_failed_attestation_withholds_the_verdict(tmp_path: Path) -> None:
    arm = Arm("recent", "0" * 22 + "XX")
    build_store(tmp_path / "s", [RANDOM, arm])
    found = row(differences_table(Reader(tmp_path / "s")), arm)
    assert found["difference"] == pytest.approx(-20 / 22)
    assert (found["verdict"], found["reason"]) == ("unresolved", "invalid: attestation failed in 2 rows")
    assert row(arms_table(Reader(tmp_path / "s")), arm)["invalid"] == 2


def test_simulated_rows_are_in_no_table(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [RANDOM])
    build_store(tmp_path / "s", [RECENT], campaign="fake", provenance=replace(PROVENANCE, kind="simulated"))
    reader = Reader(tmp_path / "s")
    assert list(arms_table(reader)["policy"]) == ["random"]
    assert differences_table(reader).empty
    assert simulated_cells(reader) == [RECENT.cell.label]


def test_views_filter_without_changing_the_family(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM, BARE, RECENT])
    reader = Reader(tmp_path / "s")
    whole = differences_table(reader)
    view = differences_table(reader, selection=Selection(policies=["recent"]))
    assert list(view["policy"]) == ["recent"]
    assert row(view, RECENT)["p_holm"] == row(whole, RECENT)["p_holm"]
    with pytest.raises(UserError, match=r"no cell has policy 'recnt'.*Did you mean 'recent'"):
        arms_table(reader, Selection(policies=["recnt"]))


def test_a_campaign_shows_only_its_cells(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM], campaign="first")
    build_store(tmp_path / "s", [RANDOM, RECENT], campaign="second")
    reader = Reader(tmp_path / "s")
    assert set(arms_table(reader, Selection(campaign="first"))["policy"]) == {"full", "random"}
    assert len(arms_table(reader)) == 3


def test_an_unknown_reference_is_refused_by_name(tmp_path: Path) -> None:
    build_store(tmp_path / "s", [FULL, RANDOM])
    with pytest.raises(UserError, match=r"'randm' has no cell here; policies: full, random. Did you mean 'random'"):
        differences_table(Reader(tmp_path / "s"), Question(reference="randm"))


def test_families_by_task_and_over_all(tmp_path: Path) -> None:
    arms = [RANDOM, RECENT, replace(RANDOM, task="reasoner_p"), replace(RECENT, task="reasoner_p")]
    build_store(tmp_path / "s", arms)
    reader = Reader(tmp_path / "s")
    sizes = {
        family: set(differences_table(reader, Question(family=family))["family_size"]) for family in ("task", "all")
    }
    assert sizes == {"task": {1}, "all": {2}}


def test_problems_that_never_evict_are_set_apart_by_the_full_arm(tmp_path: Path) -> None:
    # Problem i has 1040 + 2 i tokens under the full cache: at keep 1060 problems 11 to 23 are longer.
    arms = [FULL, replace(RANDOM, keep=1060), replace(RECENT, keep=1060)]
    build_store(tmp_path / "s", arms)
    found = row(differences_table(Reader(tmp_path / "s")), arms[2])
    assert (found["problems"], found["long_problems"]) == (24, 13)
    assert found["difference"] == pytest.approx(-8 / 24)
    assert found["long_difference"] == pytest.approx(-8 / 13)


def test_equivalence_only_where_asked(tmp_path: Path) -> None:
    # 400 problems, 3 wins and 3 losses.
    arms = [Arm("random", "000" + "111" + "1" * 394), Arm("recent", "111" + "000" + "1" * 394)]
    build_store(tmp_path / "s", arms)
    reader = Reader(tmp_path / "s")
    assert row(differences_table(reader), arms[1])["verdict"] == "unresolved"
    asked = differences_table(reader, Question(rule=Rule(margin=0.02)))
    assert row(asked, arms[1])["verdict"] == "equivalent"


def test_an_empty_store_has_empty_tables(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    reader = Reader(tmp_path / "s")
    assert dict(arms_table(reader).dtypes.astype(str)) == dict(ARMS)
    assert dict(differences_table(reader).dtypes.astype(str)) == dict(DIFFERENCES)
    assert arms_table(reader).empty
