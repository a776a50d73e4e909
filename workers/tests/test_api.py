"""What the worker contract and the policies must agree on."""

from __future__ import annotations

from policies import retention
from workers import api


def test_age_histograms_have_one_number_of_bins() -> None:
    assert retention.AGE_BINS == api.AGE_BINS
