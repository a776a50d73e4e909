"""Labels, order and grids on frames written by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from dashboard import frames, theme
from dashboard.frames import Show

KEYS = {
    "comparison_id": "m",
    "model": "embedded:reasoner",
    "task": "w",
    "policy_params": "{}",
    "keep": 264,
    "interval": 16,
}


def cells(*rows: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame([{**KEYS, "cell_id": f"c{place}", **row} for place, row in enumerate(rows)])


def test_arms_are_named_by_policy_and_rule_in_the_fixed_order() -> None:
    table = frames.labelled(
        cells(
            {"policy": "recent", "protection": "none"},
            {"policy": "random", "protection": "sinks"},
            {"policy": "full", "protection": None, "keep": None, "interval": None},
            {"policy": "random", "protection": "prompt"},
        )
    )
    assert list(table["arm"]) == [
        "full",
        "random · prompt protected",
        "random · sinks protected",
        "recent · unprotected",
    ]
    assert list(table["budget"]) == ["", *["K 264 · r 16"] * 3]
    assert set(table["panel_title"]) == {"reasoner · w"}
    assert frames.arm_order(table) == list(table["arm"])


def test_arms_that_differ_in_parameters_or_nothing_visible_have_different_names() -> None:
    table = frames.labelled(
        cells(
            {"policy": "snapkv", "protection": "prompt", "policy_params": '{"kernel":5}'},
            {"policy": "snapkv", "protection": "prompt", "policy_params": '{"kernel":7}'},
            {"policy": "recent", "protection": "prompt"},
            {"policy": "recent", "protection": "prompt"},
        )
    )
    assert table["arm"].is_unique
    assert 'snapkv · prompt protected · {"kernel":5}' in set(table["arm"])


def test_one_arm_has_one_name_at_every_budget() -> None:
    table = frames.labelled(
        cells({"policy": "recent", "protection": "prompt"}, {"policy": "recent", "protection": "prompt", "keep": 512})
    )
    assert set(table["arm"]) == {"recent · prompt protected"}
    assert frames.budgets(table) == ["K 264 · r 16", "K 512 · r 16"]


def test_the_same_task_under_two_settings_makes_two_panels() -> None:
    table = frames.labelled(
        cells(
            {"policy": "recent", "protection": "prompt", "comparison_id": "aaaaaaaa"},
            {"policy": "recent", "protection": "prompt", "comparison_id": "bbbbbbbb"},
        )
    )
    assert [panel.title for panel in frames.panels(table)] == ["reasoner · w aaaaaa", "reasoner · w bbbbbb"]


@pytest.fixture
def arms() -> pd.DataFrame:
    return frames.labelled(
        cells({"policy": "random", "protection": "prompt"}, {"policy": "recent", "protection": "prompt"})
    )


@pytest.fixture
def outcomes() -> pd.DataFrame:
    """p0 solved by both; p1 by random alone; p2 by neither; p3 by random in one of two samples, ungraded for recent."""
    verdicts = {
        "c0": ["correct", "correct", "wrong", "correct"],
        "c1": ["correct", "truncated", "no_answer", "ungraded"],
    }
    rows = [(cell, f"p{i}", i, 0, verdict) for cell, mine in verdicts.items() for i, verdict in enumerate(mine)] + [
        ("c0", "p3", 3, 1, "error"),
        ("c0", "p3", 3, 2, "wrong"),
    ]
    table = pd.DataFrame(rows, columns=["cell_id", "problem_id", "problem_index", "sample", "verdict"])
    counts = pd.get_dummies(table["verdict"]).reindex(columns=list(theme.OUTCOMES), fill_value=0).astype(int)
    counts["graded"] = counts["correct"] + counts["wrong"] + counts["truncated"] + counts["no_answer"]
    counts["samples"] = 1
    keys = table[["cell_id", "problem_id", "problem_index"]]
    return pd.concat([keys, counts], axis=1).groupby(list(keys), as_index=False).sum()


def test_the_grid_is_hardest_first_and_counts_no_error_as_wrong(arms: pd.DataFrame, outcomes: pd.DataFrame) -> None:
    grid = frames.problem_grid(outcomes, arms, Show.ALL)
    assert list(grid.text.index) == ["p2", "p1", "p3", "p0"]
    assert grid.total == 4
    assert grid.text.loc["p3", "random · prompt protected"] == "1/3 ● ✕ !"
    assert grid.share.loc["p3", "random · prompt protected"] == 0.5
    assert grid.text.loc["p3", "recent · prompt protected"] == "?"
    assert grid.share["recent · prompt protected"].isna().to_dict()["p3"]


def test_the_grid_can_be_narrowed(arms: pd.DataFrame, outcomes: pd.DataFrame) -> None:
    assert list(frames.problem_grid(outcomes, arms, Show.DIFFERING).text.index) == ["p1"]
    assert list(frames.problem_grid(outcomes, arms, Show.UNSOLVED).text.index) == ["p2", "p1", "p3"]


def test_a_window_of_the_grid_is_a_part_of_the_whole(arms: pd.DataFrame, outcomes: pd.DataFrame) -> None:
    whole = frames.problem_grid(outcomes, arms)
    part = frames.problem_grid(outcomes, arms, window=slice(1, 3))
    pd.testing.assert_frame_equal(part.text, whole.text.iloc[1:3])
    pd.testing.assert_frame_equal(part.share, whole.share.iloc[1:3])
    assert part.total == 4


def test_verdicts_of_unfinished_comparisons_are_never_counted() -> None:
    table = pd.DataFrame({"cell_id": ["a", "b"], "verdict": ["worse", "worse"], "complete": [True, False]})
    assert frames.verdict_counts(table) == {"worse": 1, "unresolved": 0, "equivalent": 0, "better": 0, "unfinished": 1}
    assert frames.verdicts(table) == {"a": "worse"}
