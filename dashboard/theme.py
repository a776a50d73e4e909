"""How everything looks: colours and order per policy, verdict marks, number formats, chart defaults.

A policy keeps its colour, shape and place in every chart and table, whatever else is plotted beside it. Colour never
carries a meaning alone: policies also have a shape, verdicts a mark, problem outcomes a glyph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import pandas as pd

# Okabe & Ito (2008), without their yellow, which is too faint on white.
BLACK: Final = "#000000"
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"

INK: Final = "#1F2933"
MUTED: Final = "#5F6B7A"
GREY: Final = "#8A94A0"
RULE: Final = "#D9DEE4"
TINT: Final = "#EAF3FA"
FONT: Final = '"Source Sans", "Source Sans Pro", "DejaVu Sans", sans-serif'


@dataclass(frozen=True, slots=True)
class PolicyStyle:
    """Place, colour and point shape of one policy in every view."""

    order: int
    colour: str
    shape: str


_STYLES: Final[Mapping[str, PolicyStyle]] = {
    name: PolicyStyle(order, colour, shape)
    for order, (name, colour, shape) in enumerate(
        [
            ("full", BLACK, "square"),
            ("random", BLUE, "circle"),
            ("random_inplace", SKY, "circle"),
            ("random_shared", BLUE, "diamond"),
            ("random_block", SKY, "diamond"),
            ("recent", ORANGE, "circle"),
            ("streaming_llm", ORANGE, "square"),
            ("h2o", GREEN, "circle"),
            ("snapkv", PURPLE, "circle"),
            ("rkv", VERMILION, "circle"),
            ("vase", GREEN, "diamond"),
            ("vase_paper", GREEN, "triangle-up"),
            ("triattention", PURPLE, "diamond"),
        ]
    )
}
_SPARE_COLOURS: Final = (VERMILION, PURPLE, GREEN, ORANGE, SKY)
_SPARE_SHAPES: Final = ("triangle-up", "triangle-down", "cross", "triangle-right")


def style(policy: str) -> PolicyStyle:
    """Style of a policy; one that this file does not know gets a stable one from its name, after the known ones."""
    known = _STYLES.get(policy)
    if known is not None:
        return known
    digest = hashlib.blake2b(policy.encode(), digest_size=4).digest()
    colour = _SPARE_COLOURS[digest[0] % len(_SPARE_COLOURS)]
    shape = _SPARE_SHAPES[digest[1] % len(_SPARE_SHAPES)]
    return PolicyStyle(len(_STYLES), colour, shape)


def policy_key(policy: str) -> tuple[int, str]:
    """Sort key of the fixed policy order."""
    return style(policy).order, policy


def colour_scale(policies: Iterable[str]) -> alt.Scale:
    """Colour scale over the policies present, in their fixed order, so that a legend lists only what is plotted."""
    present = sorted(set(policies), key=policy_key)
    return alt.Scale(domain=present, range=[style(name).colour for name in present])


def shape_scale(policies: Iterable[str]) -> alt.Scale:
    """Shape scale with the same domain as colour_scale, so that both legends merge."""
    present = sorted(set(policies), key=policy_key)
    return alt.Scale(domain=present, range=[style(name).shape for name in present])


@dataclass(frozen=True, slots=True)
class Mark:
    """A verdict or an outcome as people see it: glyph, colour and words."""

    glyph: str
    colour: str
    text: str


VERDICTS: Final[Mapping[str, Mark]] = {
    "worse": Mark("▼", VERMILION, "worse"),
    "unresolved": Mark("·", GREY, "unresolved"),
    "equivalent": Mark("≈", SKY, "equivalent"),
    "better": Mark("▲", BLUE, "better"),
}
OUTCOMES: Final[Mapping[str, Mark]] = {
    "correct": Mark("●", GREEN, "correct"),
    "wrong": Mark("✕", VERMILION, "wrong"),
    "truncated": Mark("◧", ORANGE, "hit the token limit"),
    "no_answer": Mark("○", PURPLE, "no answer found"),
    "error": Mark("!", BLACK, "error"),
    "ungraded": Mark("?", GREY, "not graded yet"),
}
INCOMPLETE: Final = "◌"


def verdict_mark(verdict: str | None) -> str:
    """Glyph of a verdict; empty for the reference and for a comparison that was not made."""
    mark = VERDICTS.get(verdict or "")
    return mark.glyph if mark else ""


def _missing(value: float | None) -> bool:
    return bool(pd.isna(value))


def percent(share: float | None, digits: int = 1) -> str:
    """`0.874 -> 87.4`, without the sign; an en dash for a missing value."""
    return "–" if share is None or _missing(share) else f"{100 * share:.{digits}f}"


def points(difference: float | None, digits: int = 1) -> str:
    """Difference of two shares in percentage points with a typographic sign: `+2.1`, `−0.4`, `0.0`."""
    if difference is None or _missing(difference):
        return "–"
    rounded = round(100 * difference, digits)
    if rounded == 0:
        return f"{0:.{digits}f}"
    return f"{'+' if rounded > 0 else '−'}{abs(rounded):.{digits}f}"


def interval(low: float | None, high: float | None) -> str:
    """Interval of a difference in points: `[−1.2, +3.4]`."""
    return "–" if _missing(low) or _missing(high) else f"[{points(low)}, {points(high)}]"


def p_value(value: float | None) -> str:
    """Two digits, `< 0.001` below that; an en dash where the comparison is in no family or has no test."""
    if value is None or _missing(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def sample_size(problems: int, samples: float) -> str:
    """`500×4`: problems times samples each; samples is a mean when problems differ (`500×3.5`)."""
    return f"{problems:,}×{samples:g}" if samples == round(samples, 1) else f"{problems:,}×{samples:.1f}"


def score(accuracy: float | None, half_width: float | None, problems: int, samples: float, mark: str = "") -> str:
    """The self-documenting cell: `87.4 ▲ ±1.6 (500×4)`."""
    middle = f" {mark}" if mark else ""
    return f"{percent(accuracy)}{middle} ±{percent(half_width)} ({sample_size(problems, samples)})"


def count(value: float | None) -> str:
    """Whole number with thousands separators; an en dash when missing."""
    return "–" if value is None or _missing(value) else f"{value:,.0f}"


def signed(value: float | None) -> str:
    """Whole number with a typographic sign: `+1,204`, `−35`, `0`; an en dash when missing."""
    if value is None or _missing(value):
        return "–"
    rounded = round(value)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded):,}"


def duration(seconds: float | None) -> str:
    """`3 s`, `4 min`, `2.5 h`, `3 days`: one unit, as people say it."""
    if seconds is None or _missing(seconds):
        return "–"
    for limit, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def chart_config() -> dict[str, Any]:
    """Vega-Lite configuration shared by every chart; Streamlit's own theme is switched off (theme=None)."""
    return {
        "background": "white",
        "font": FONT,
        "view": {"stroke": None, "continuousWidth": 420, "continuousHeight": 260},
        "axis": {
            "labelColor": INK, "labelFontSize": 12, "labelLimit": 260,
            "titleColor": MUTED, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 8,
            "domainColor": RULE, "tickColor": RULE, "gridColor": "#EEF1F4",
        },
        "header": {"labelColor": INK, "labelFontSize": 13, "labelFontWeight": 600, "title": None},
        "legend": {"labelColor": INK, "labelFontSize": 12, "titleColor": MUTED, "titleFontWeight": "normal",
                   "orient": "bottom", "symbolSize": 90},
        "title": {"color": INK, "fontSize": 14, "fontWeight": 600, "anchor": "start",
                  "subtitleColor": MUTED, "subtitleFontSize": 12},
    }  # fmt: skip
