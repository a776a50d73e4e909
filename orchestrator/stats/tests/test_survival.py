"""Survival: the law holds exactly what the length algebra says is cached; measured shares invert their histogram."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.stats import survival
from policies.budget import Budget
from policies.retention import AGE_BINS, age_histogram


@given(
    prompt=st.integers(1, 100),
    room=st.integers(2, 60),
    interval=st.integers(1, 40),
    events=st.integers(0, 30),
    protected=st.booleans(),
)
def test_the_law_keeps_exactly_keep_tokens_after_each_event(
    prompt: int, room: int, interval: int, events: int, protected: bool
) -> None:
    """A draw keeps a fixed number of slots, so the chances sum to K' right after an event, to the last one."""
    keep = prompt + interval + room
    length = keep + interval * (events + 1)
    chances = survival.survival(length, prompt, keep, prompt if protected else 0, Budget(keep, interval, interval))
    assert chances.sum() == pytest.approx(keep, rel=1e-12)
    assert (chances[-interval:] == 1).all()
    if protected:
        assert (chances[:prompt] == 1).all()


def test_the_law_is_the_geometric_one_of_the_contract() -> None:
    keep, interval, prompt = 264, 16, 40
    chances = survival.survival(1000, prompt, keep, prompt, Budget(keep, interval, interval))
    per_event = (keep - interval - prompt) / (keep - prompt)
    events = (1000 - (keep + interval)) // interval + 1
    assert chances[prompt] == pytest.approx(per_event**events)


def test_nothing_is_lost_before_the_first_event() -> None:
    assert (survival.survival(279, 40, 264, 0, Budget(264, 16, 16)) == 1).all()


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_every_token_is_in_one_bin(lengths: list[int]) -> None:
    counted = np.zeros(AGE_BINS, dtype=int)
    for length in lengths:
        counted += np.bincount(survival.age_bins(np.arange(length)), minlength=AGE_BINS)
    assert survival.tokens_per_bin(np.array(lengths), AGE_BINS).tolist() == counted.tolist()


def test_bins_are_those_of_the_trace() -> None:
    """A cache that lost nothing holds every token of every age, by the histogram that workers write."""
    heads, lengths = 16, (1, 2, 5, 1061)
    histograms = [[heads * n for n in age_histogram(torch.arange(length))] for length in lengths]
    rows = pd.DataFrame({"cell_id": "c", "n_prompt": 1, "n_output": list(lengths), "age_histogram": histograms})
    table = survival.held(rows)
    assert (table["held"] == 1).all()
    assert table["age_from"].tolist() == [2**b for b in range(11)]
    assert table["age"].iloc[-1] == "1,024–2,047"


def test_held_inverts_a_histogram_of_known_shares() -> None:
    pairs, length = 6, 100
    tokens = survival.tokens_per_bin(np.array([length]), AGE_BINS)
    wanted = np.array([1.0, 1.0, 1.0, 0.5, 0.25, 0.125, 0.5, 1.0] + [0.0] * 24)
    rows = pd.DataFrame(
        {"cell_id": ["c", "c"], "n_prompt": [41, 41], "n_output": [60, 60],
         "age_histogram": [tokens * pairs * wanted] * 2}
    )  # fmt: skip
    table = survival.held(rows)
    assert table["held"].tolist() == pytest.approx(wanted[1:8])
    assert table["age"].tolist() == ["1", "2–3", "4–7", "8–15", "16–31", "32–63", "64–127"]
    assert set(table["rows"]) == {2}


def test_cells_without_a_histogram_are_left_out() -> None:
    rows = pd.DataFrame({"cell_id": ["c"], "n_prompt": [4], "n_output": [5], "age_histogram": [[0] * AGE_BINS]})
    assert survival.held(rows).empty
    assert survival.law(pd.DataFrame(columns=["keep"])).empty


def test_the_law_averages_rows_by_age() -> None:
    row = {"n_prompt": 40, "n_output": 961, "keep": 264, "interval": 16, "recent": 16, "protection": "prompt",
           "n_sink": 4, "overflow_mode": "grow"}  # fmt: skip
    table = survival.law(pd.DataFrame([row, row]))
    one = survival.survival(1000, 40, 264, 40, Budget(264, 16, 16))[::-1]
    assert table["age_from"].tolist() == [2**b for b in range(10)]
    assert table["held"].iloc[4] == pytest.approx(one[16:32].mean())


def test_intervals_cluster_by_problem_and_the_union_stands_beside_its_theory() -> None:
    keep, interval, prompt, output, pairs = 24, 8, 8, 93, 2
    histogram = np.zeros(AGE_BINS)
    # Every age half held by the two heads together, the newest token by both.
    tokens = survival.tokens_per_bin(np.array([prompt + output - 1]), AGE_BINS)
    row = {"cell_id": "c", "problem_id": "p0", "n_prompt": prompt, "n_output": output, "keep": keep, "recent": interval,
           "interval": interval, "protection": "prompt", "n_sink": 4, "overflow_mode": "grow", "events": 9,
           "prompt_kept_mean": 1.0, "prompt_kept_min": 0.5, "union_alive": 50}  # fmt: skip
    shares = (0.25, 0.25, 0.75)
    rows = []
    for problem, share in zip(("p0", "p0", "p1"), shares, strict=True):
        histogram = tokens * pairs * np.where(np.arange(AGE_BINS) == 0, 1.0, share)
        rows.append({**row, "problem_id": problem, "age_histogram": histogram})
    held = survival.held(pd.DataFrame(rows)).iloc[-1]
    assert (held["held"], held["rows"], held["problems"]) == (pytest.approx(1.25 / 3), 3, 2)
    # Two problems with .25 and .75: far from 3 independent rows; clipped to what a share can be.
    assert (held["low"], held["high"]) == (0.0, 1.0)
    found = survival.retention(pd.DataFrame(rows)).iloc[0]
    assert (found["prompt_kept"], found["prompt_kept_least"], found["union_share"]) == (1.0, 0.5, 0.5)
    alone = survival.survival(100, prompt, keep, prompt, Budget(keep, interval, interval))
    assert found["uniform_union_share"] == pytest.approx((1 - (1 - alone) ** 2).mean())
    assert list(found.index) == list(survival.RETENTION)


def test_sums_over_rows_give_the_same_shares_as_the_rows() -> None:
    lengths = [100, 300, 300, 1061]
    histograms = [[16 * n for n in age_histogram(torch.arange(length))] for length in lengths]
    for histogram in histograms:
        histogram[5] //= 2
    rows = pd.DataFrame(
        {"cell_id": "c", "n_prompt": 1, "n_output": lengths, "age_histogram": histograms, "problem_id": list("abcd")}
    )
    kept = pd.DataFrame({"cell_id": ["c"], "kept": [np.sum(histograms, axis=0).tolist()]})
    counted = pd.DataFrame({"cell_id": "c", "length": [100, 300, 1061], "rows": [1, 2, 1]})
    found, wanted = survival.held_of(kept, counted), survival.held(rows)
    columns = ["cell_id", "age_from", "age", "held", "rows"]
    pd.testing.assert_frame_equal(found[columns], wanted[columns], check_dtype=False)
    assert found["held"].tolist()[4] == pytest.approx(0.5)
