"""TriAttention's vector adapter on cases that the file here does not have: gaps, rotated queries, ports, mistakes."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.vectors.triattention import run

OMEGA = [1.0, 0.01]


def case(identity: str) -> dict[str, Any]:
    file = Path(__file__).parent / "data" / "policy_vectors.json"
    document = json.loads(file.read_text())
    return copy.deepcopy(next(case for case in document["cases"] if case["id"] == identity))


def test_gaps_in_positions_follow_the_papers_formula() -> None:
    """Positions with holes and keys that were not given after the rotation; every term by hand."""
    gapped = case("tri_score_full")
    inputs = gapped["inputs"]
    del inputs["keys_post_rope"]
    inputs |= {"positions": [0, 3, 4, 9, 17, 30, 31, 57], "t": 60}
    expected = []
    for key, position in zip(inputs["keys_pre_rope"], inputs["positions"], strict=True):
        score = 0.0
        for band, omega in enumerate(OMEGA):
            k = complex(key[band], key[band + 2])
            q = complex(inputs["q_center_real"][band], inputs["q_center_imag"][band])
            turns = [(60 - position + delta) * omega + np.angle(q) - np.angle(k) for delta in inputs["offsets"]]
            score += abs(q) * abs(k) * sum(map(math.cos, turns)) / 3 + (inputs["q_abs_mean"][band] - abs(q)) * abs(k)
        expected.append(score)
    np.testing.assert_allclose(run(gapped).values["score"], expected, atol=2e-6)


def test_rotated_queries_are_turned_back() -> None:
    plain = case("tri_calibration")
    queries, positions = np.array(plain["inputs"].pop("q_pre_rope")), [0, 5, 11, 400]
    turned = (queries[:, :2] + 1j * queries[:, 2:]) * np.exp(1j * np.outer(positions, OMEGA))
    rows = np.concatenate((turned.real, turned.imag), 1).tolist()
    plain["inputs"] |= {"q_post_rope": rows, "positions": positions, "omega": OMEGA}
    for name, wanted in plain["expected"].items():
        np.testing.assert_allclose(run(plain).values[name], wanted, atol=2e-6)


def test_ports_differ_in_order_of_normalising_and_grouping() -> None:
    heads = np.random.default_rng(4).normal(size=(2, 4, 9)) * np.array([1.0, 5.0, 1.0, 3.0])[:, None]
    names = {"hf_kept": None, "vllm_kept": None, "sglang_kept": None, "hf": None}
    found = run(
        {"variant": "ports", "params": {"n_select": 4}, "inputs": {"raw": heads.tolist()}, "expected": names}
    ).values
    z = (heads - heads.mean(2, keepdims=True)) / heads.std(2, keepdims=True)
    score = z.reshape(2, 2, 2, 9).max(2).mean(0)
    np.testing.assert_allclose(found["hf"]["score"], score)
    assert found["hf_kept"] == found["vllm_kept"] == np.sort(np.argsort(-score, 1)[:, :4], 1).tolist()
    assert found["sglang_kept"] != found["hf_kept"]


def test_a_case_that_contradicts_itself_is_no_pass() -> None:
    wrong = case("tri_score_full")
    wrong["inputs"]["positions"][3] = 4
    with pytest.raises(ValueError, match="keys_post_rope are not keys_pre_rope turned"):
        run(wrong)
    with pytest.raises(LookupError, match="no variant 'sum' of policy 'triattention'; known variants: score, max"):
        run({**wrong, "variant": "sum"})
