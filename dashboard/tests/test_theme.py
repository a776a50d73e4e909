"""Colours and formats are the project's handwriting: the same policy, verdict and number look alike everywhere."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from dashboard import theme


def relative_luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0.874, 0.016, 500, 4, "▲"), "87.4 ▲ ±1.6 (500×4)"),
        ((0.0192, 0.02, 104, 1, ""), "1.9 ±2.0 (104×1)"),
        ((1.0, 0.0, 1200, 3.5, "·"), "100.0 · ±0.0 (1,200×3.5)"),
        ((math.nan, math.nan, 0, 0, ""), "– ±– (0×0)"),
    ],
)
def test_score_is_the_self_documenting_cell(arguments: tuple[float, float, int, float, str], text: str) -> None:
    assert theme.score(*arguments) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0.021, "+2.1"), (-0.004, "−0.4"), (0.0, "0.0"), (-0.0004, "0.0"), (math.nan, "–"), (None, "–")]
)
def test_points_have_a_typographic_sign_and_no_negative_zero(share: float | None, text: str) -> None:
    assert theme.points(share) == text


def test_interval_of_a_difference() -> None:
    assert theme.interval(-0.012, 0.034) == "[−1.2, +3.4]"
    assert theme.interval(math.nan, 0.034) == "–"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.2, "3 s"), (89, "89 s"), (240, "4 min"), (9000, "2.5 h"), (260000, "3 days"), (None, "–")],
)
def test_duration_has_one_unit(seconds: float | None, text: str) -> None:
    assert theme.duration(seconds) == text


def test_known_policies_never_share_colour_and_shape() -> None:
    looks = [(theme.style(name).colour, theme.style(name).shape) for name in theme._STYLES]
    assert len(set(looks)) == len(looks)


def test_a_policy_of_a_user_keeps_its_look_and_comes_last() -> None:
    mine = theme.style("my_policy")
    assert mine == theme.style("my_policy")
    assert (mine.colour, mine.shape) not in [(s.colour, s.shape) for s in map(theme.style, theme._STYLES)]
    assert sorted(["my_policy", "recent", "full", "random"], key=theme.policy_key) == [
        "full", "random", "recent", "my_policy",
    ]  # fmt: skip


def test_legends_list_only_what_is_plotted_in_fixed_order() -> None:
    scale = theme.colour_scale(["recent", "random", "recent"]).to_dict()
    assert scale["domain"] == ["random", "recent"]
    assert scale["range"] == [theme.BLUE, theme.ORANGE]


@pytest.mark.parametrize("marks", [theme.VERDICTS, theme.OUTCOMES])
def test_marks_differ_without_their_colour(marks: dict[str, theme.Mark]) -> None:
    assert len({mark.glyph for mark in marks.values()}) == len(marks)
    assert all(a.text != b.text for a, b in combinations(marks.values(), 2))


def test_verdict_glyphs() -> None:
    assert [theme.verdict_mark(v) for v in ("better", "worse", "unresolved", None)] == ["▲", "▼", "·", ""]


@pytest.mark.parametrize("colour", [theme.INK, theme.MUTED, "#005E93", "#B04A00"])
def test_text_colours_reach_contrast_4_5_on_white_and_on_the_reference_tint(colour: str) -> None:
    for ground in ("#FFFFFF", theme.TINT):
        lighter, darker = sorted((relative_luminance(ground), relative_luminance(colour)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5
