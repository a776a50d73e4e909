"""Shading: shares of ages come back onto the text that they were counted from."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dashboard import shading, texts
from orchestrator.stats.survival import age_bins, tokens_per_bin
from policies.retention import AGE_BINS

PAIRS = 12


def histogram(held: np.ndarray) -> list[int]:
    """Counts of a cache whose (layer, head) pairs hold `held` [length] copies of each position, oldest first."""
    ages = np.arange(len(held))[::-1]
    return np.bincount(age_bins(ages), weights=held, minlength=AGE_BINS).astype(int).tolist()


def row(held: np.ndarray, prompt: int, kept: float) -> dict[str, object]:
    return {
        "n_prompt": prompt, "n_output": len(held) - prompt + 1, "age_histogram": histogram(held),
        "prompt_kept_mean": kept,
    }  # fmt: skip


def test_a_text_that_lost_nothing_is_held_by_all() -> None:
    found = shading.stretches(row(np.full(300, PAIRS), 40, 1.0), 2610)
    assert {one.level for one in found} == {shading.LEVELS}
    assert found[0].start == 0
    assert found[-1].end == 2600
    assert all(a.end == b.start for a, b in pairwise(found))


def test_what_is_gone_in_every_head_is_struck_through_and_a_kept_prompt_does_not_hide_it() -> None:
    held = np.full(300, PAIRS)
    # ages 64 to 255 are generated tokens 4 to 195 of 260
    held[300 - 256 : 300 - 64] = 0
    found = shading.stretches(row(held, 40, 1.0), 261)
    gone = [one for one in found if one.level == 0]
    assert [one.age for one in gone] == ["128–255", "64–127"]
    assert (gone[0].start, gone[-1].end) == (4, 196)
    # the oldest bin holds 40 tokens of a whole prompt and 4 generated ones that are all held
    assert found[0].share == pytest.approx(1.0)


def test_shares_are_means_over_heads() -> None:
    held = np.full(300, PAIRS)
    held[300 - 128 : 300 - 64] = 3
    found = {one.age: one for one in shading.stretches(row(held, 40, 1.0), 261)}
    assert found["64–127"].share == pytest.approx(3 / PAIRS)
    assert found["64–127"].level == 2


def test_rows_without_a_trace_are_not_shaded() -> None:
    assert shading.stretches({"n_prompt": 4, "n_output": 9, "age_histogram": None}, 9) == []
    assert shading.stretches({"n_prompt": 4, "n_output": 9, "age_histogram": [0] * AGE_BINS}, 9) == []
    assert tokens_per_bin(np.array([3]), 4).tolist() == [1, 1, 1, 0]


def test_shades_and_differences_stand_on_the_same_text_and_stay_escaped() -> None:
    stretches = [shading.Stretch(0, 4, 0.0, "8–15"), shading.Stretch(4, 9, 1.0, "0")]
    html = texts.panel("<b> same&x", shared=6, stretches=stretches)
    assert (
        '<span class="same held-0" title="age 8–15 tokens: held by 0 % of heads at the end">&lt;b&gt; </span>' in html
    )
    assert '<span class="same held-8"' in html
    assert '<span class="differs held-8"' in html
    assert html.count("&amp;") == 1
