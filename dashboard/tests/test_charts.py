"""Charts through to_dict(): scales shared by panels, fixed order, marks for unfinished cells, bounded intervals."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from dashboard import theme
from dashboard.charts import accuracy, base, forest, lengths, retention

ARMS = ["full", "random · prompt protected", "recent · prompt protected", "random · unprotected"]


@pytest.fixture
def arms() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "arm": ARMS,
            "policy": ["full", "random", "recent", "random"],
            "accuracy": [0.99, 0.98, 0.97, 0.02],
            "low": [0.95, 0.93, 0.92, 0.005],
            "high": [1.0, 0.99, 0.99, 0.07],
            "truncated": [0.0, 0.01, 0.0, 0.5],
            "no_answer": [0.0, 0.0, 0.01, 0.3],
            "done": [1.0, 1.0, 0.5, 1.0],
            "n": ["104×1"] * 4,
            "cell_id": list("abcd"),
            "complete": [True, True, False, True],
        }
    )


@pytest.fixture
def differences() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "arm": ARMS[2:],
            "reference": [ARMS[1]] * 2,
            "difference": [-0.01, -0.96],
            "low": [-0.04, -1.0],
            "high": [0.02, -0.9],
            "verdict": [None, "worse"],
            "counts": ["1 / 2 / 101", "0 / 100 / 4"],
            "p_sign": [1.0, 1e-20],
            "n": ["104×1"] * 2,
            "done": ["52 / 104", "104 / 104"],
            "complete": [False, True],
        }
    )


def layers(chart: Any) -> list[dict[str, Any]]:
    return chart.to_dict()["layer"]


def values(chart: Any) -> list[dict[str, Any]]:
    return max(chart.to_dict()["datasets"].values(), key=len)


def mark(layer: dict[str, Any]) -> str:
    return layer["mark"]["type"]


def test_accuracy_shows_full_as_a_line_behind_the_arms(arms: pd.DataFrame) -> None:
    drawn = layers(accuracy.dots(arms, ARMS, (0, 100)))
    assert [mark(layer) for layer in drawn] == ["rule", "rule", "point"]
    assert "y" not in drawn[0]["encoding"]
    assert drawn[1]["encoding"]["y"]["sort"] == ARMS
    without = accuracy.dots(arms[arms["policy"] != "full"], ARMS[1:], (0, 100))
    assert [mark(layer) for layer in layers(without)] == ["rule", "point"]


def test_accuracy_is_in_percent_on_the_shared_axis(arms: pd.DataFrame) -> None:
    chart = accuracy.dots(arms, ARMS, (0, 100))
    assert {row["accuracy"] for row in values(chart)} == {99.0, 98.0, 97.0, 2.0}
    assert layers(chart)[2]["encoding"]["x"]["scale"]["domain"] == [0, 100]


def test_unfinished_arms_are_hollow_and_dashed(arms: pd.DataFrame) -> None:
    bars, points = layers(accuracy.dots(arms, ARMS, (0, 100)))[1:]
    assert points["encoding"]["fill"]["condition"]["test"] == "datum.complete"
    assert points["encoding"]["fill"]["value"] == "white"
    assert bars["encoding"]["strokeDash"]["value"] == [3, 3]


def test_colours_are_those_of_the_policies_present(arms: pd.DataFrame) -> None:
    scale = layers(accuracy.dots(arms, ARMS, (0, 100)))[2]["encoding"]["color"]["scale"]
    assert scale == {"domain": ["full", "random", "recent"], "range": [theme.BLACK, theme.BLUE, theme.ORANGE]}


def test_forest_has_a_zero_line_intervals_marks_and_counts(differences: pd.DataFrame) -> None:
    drawn = layers(forest.forest(differences, ARMS[2:], (-101, 4)))
    assert [mark(layer) for layer in drawn] == ["rule", "rule", "point", "text", "text"]
    assert drawn[0]["encoding"]["x"]["datum"] == 0
    assert drawn[4]["encoding"]["text"]["field"] == "counts"


def test_an_unfinished_comparison_has_no_verdict(differences: pd.DataFrame) -> None:
    differences.loc[0, "verdict"] = "worse"
    rows = {row["arm"]: row for row in values(forest.forest(differences, ARMS[2:], (-101, 4)))}
    assert (rows[ARMS[2]]["glyph"], rows[ARMS[2]]["verdict"]) == (theme.INCOMPLETE, "unresolved")
    assert (rows[ARMS[3]]["glyph"], rows[ARMS[3]]["verdict"]) == ("▼", "worse")


def test_domains_hold_every_interval_and_zero() -> None:
    frame = pd.DataFrame({"low": [-0.96, 0.01], "high": [-0.9, 0.04]})
    low, high = base.difference_domain(frame)
    assert low < -96
    assert high > 4
    assert base.difference_domain(frame.iloc[:0]) == (-1.0, 1.0)
    assert base.share_domain(pd.DataFrame({"low": [0.93], "high": [0.99]})) == (90.0, 100.0)
    assert base.share_domain(pd.DataFrame({"low": [], "high": []})) == (0.0, 100.0)


def test_charts_do_not_change_their_frames(arms: pd.DataFrame, differences: pd.DataFrame) -> None:
    before = arms.copy(), differences.copy()
    accuracy.dots(arms, ARMS, (0, 100))
    forest.forest(differences, ARMS[2:], (-101, 4))
    pd.testing.assert_frame_equal(arms, before[0])
    pd.testing.assert_frame_equal(differences, before[1])


def test_lengths_show_quantiles_on_a_common_axis() -> None:
    frame = pd.DataFrame(
        {"arm": ARMS[:1], "policy": ["full"], "rows": [104],
         "q10": [1000.0], "q25": [1040.0], "median": [1050.0], "q75": [1060.0], "q90": [1500.0]}
    )  # fmt: skip
    drawn = layers(lengths.quantiles(frame, ARMS[:1], most=1500))
    assert [(layer["encoding"]["x"]["field"], layer["encoding"].get("x2", {}).get("field")) for layer in drawn] == [
        ("q10", "q90"), ("q25", "q75"), ("median", None),
    ]  # fmt: skip


def test_retention_colour_is_logarithmic_and_clamped() -> None:
    frame = pd.DataFrame({"arm": ARMS[1:2] * 2, "age": ["1", "512–1023"], "held": [1.0, 0.0001], "rows": [104, 104]})
    chart = retention.heat_map(frame, ARMS[1:2], ["1", "512–1023"])
    scale = layers(chart)[0]["encoding"]["color"]["scale"]
    assert (scale["type"], scale["domain"]) == ("log", [0.01, 1])
    assert {row["clamped"] for row in values(chart)} == {1.0, 0.01}


def test_a_share_that_rounds_to_nothing_is_not_shown_as_nothing() -> None:
    assert [retention.percent_text(share) for share in (0.0, 0.004, 0.125, 1.0)] == ["0%", "<1%", "12%", "100%"]


def test_retention_lines_carry_the_law_dashed() -> None:
    frame = pd.DataFrame(
        {
            "arm": ARMS[1:2],
            "policy": ["random"],
            "rule": ["prompt protected"],
            "age_from": [16],
            "age": ["16–31"],
            "held": [0.9],
            "rows": [104],
        }
    )
    drawn = layers(retention.lines(frame, pd.DataFrame({"age_from": [16], "held": [0.91]})))
    assert drawn[2]["mark"]["strokeDash"] == [6, 4]
    assert [mark(layer) for layer in drawn] == ["line", "point", "line"]
    assert drawn[1]["encoding"]["shape"]["field"] == "rule"
