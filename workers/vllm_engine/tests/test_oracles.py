"""A small part of the oracle table (make oracles): scored policies, three architectures, groups of 1, 2 and 3."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from workers.vllm_engine.tests.cases import LONG, MODEL, random_llama, random_phi3
from workers.vllm_engine.tests.oracle import apart, compare, every_arm

pytestmark = pytest.mark.engine

TESTED_WITH_THE_ENGINE = ("random", "recent", "streaming_llm", "random_inplace")
HEAVY = ("h2o", "triattention", "vase", "GreedyForNeeds")
"""Together these need all that an engine gives."""


def check(model: str, labels: Collection[str] | None, folder: Path) -> None:
    arms = {
        label: arm
        for label, arm in every_arm().items()
        if label not in TESTED_WITH_THE_ENGINE and (labels is None or label in labels)
    }
    rows = compare(model, arms, [LONG], folder, alone=HEAVY if labels is None else ())
    assert [row for row in rows if not row.passed] == []
    assert {row.label for row in rows} == set(arms) >= set(HEAVY)


def test_every_policy_equals_the_dense_reference(tmp_path: Path) -> None:
    check(MODEL, None, tmp_path)


@pytest.mark.slow
def test_a_llama_without_groups(tmp_path: Path) -> None:
    check(random_llama(tmp_path, 3, 3, 64), HEAVY, tmp_path)


@pytest.mark.slow
def test_a_phi_3(tmp_path: Path) -> None:
    check(random_phi3(tmp_path, 6, 2), HEAVY, tmp_path)


@pytest.mark.slow
def test_arms_mixed_in_one_engine_give_the_rows_of_engines_of_their_own() -> None:
    labels = ("random", "random_inplace", "snapkv", "h2o", "vase")
    assert apart(MODEL, {label: every_arm()[label] for label in labels}) == dict.fromkeys((*labels, "off"), True)
