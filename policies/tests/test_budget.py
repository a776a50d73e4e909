"""Layouts: the overflow modes, and that no part is ever negative."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.budget import (
    Budget,
    BudgetMode,
    Layout,
    Overflow,
    Protection,
    layout,
    resolve,
)

FITS = Budget(100, 16, 16)
PROMPT, SINKS, NONE = Protection.PROMPT, Protection.SINKS, Protection.NONE


@pytest.mark.parametrize(
    ("protection", "prompt", "overflow", "expected"),
    [
        (PROMPT, 40, Overflow.GROW, Layout(100, 40, 16, 44, False)),
        (PROMPT, 84, Overflow.GROW, Layout(100, 84, 16, 0, False)),
        (PROMPT, 2, Overflow.GROW, Layout(100, 4, 16, 80, False)),
        (PROMPT, 200, Overflow.GROW, Layout(216, 200, 16, 0, True)),
        (PROMPT, 200, Overflow.PER_ARM, Layout(216, 200, 16, 0, True)),
        (PROMPT, 200, Overflow.PUBLISHED, Layout(100, 83, 16, 1, True)),
        # equal memory for all arms, or each arm's own
        (SINKS, 200, Overflow.GROW, Layout(216, 4, 16, 196, False)),
        (SINKS, 200, Overflow.PER_ARM, Layout(100, 4, 16, 80, False)),
        (NONE, 200, Overflow.PUBLISHED, Layout(100, 0, 16, 84, False)),
        (NONE, 200, Overflow.REFUSE, Layout(100, 0, 16, 84, False)),
    ],
)
def test_what_an_event_keeps(protection: Protection, prompt: int, overflow: Overflow, expected: Layout) -> None:
    assert layout(FITS, protection, prompt, 4, overflow) == expected


def test_refuse_says_what_would_do() -> None:
    with pytest.raises(
        ValueError, match="200 protected and 16 recent tokens exceed keep 100; raise keep to at least 216"
    ):
        layout(FITS, PROMPT, 200, 4, Overflow.REFUSE)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (BudgetMode.TOTAL, Budget(100, 16, 16)),
        (BudgetMode.PLUS_BUFFER, Budget(116, 16, 16)),
        (BudgetMode.TOTAL_NO_RECENT, Budget(100, 16, 0)),
    ],
)
def test_budget_modes_resolve_once(mode: BudgetMode, expected: Budget) -> None:
    assert resolve(100, 16, mode) == expected


@given(
    st.integers(1, 300), st.integers(1, 64), st.booleans(), st.sampled_from(Protection), st.integers(1, 400),
    st.integers(0, 8), st.sampled_from([Overflow.GROW, Overflow.PER_ARM, Overflow.PUBLISHED]),
)  # fmt: skip
def test_parts_add_up_and_are_never_negative(
    extra: int, interval: int, compete: bool, protection: Protection, prompt: int, n_sink: int, overflow: Overflow
) -> None:
    budget = Budget(interval + extra, interval, 0 if compete else interval)
    # planning refuses a keep below sinks and recent (orchestrator/feasibility.py)
    n_sink = min(n_sink, budget.keep - budget.recent)
    parts = layout(budget, protection, prompt, n_sink, overflow)
    assert parts.prot + parts.recent + parts.n_select == parts.keep >= budget.keep
    assert min(parts.prot, parts.recent, parts.n_select) >= 0
    assert overflow is not Overflow.PUBLISHED or parts.keep == budget.keep
