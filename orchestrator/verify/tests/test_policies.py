"""Vector files: the carried one passes, a changed number fails, and what the file cannot show is worked out by hand."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.commands.verify import command
from orchestrator.verify.policies import TOLERANCE, _difference, check

FILE = Path(__file__).parents[3] / "policies/tests/data/policy_vectors.json"
DOCUMENT = json.loads(FILE.read_text())
KEYS = {
    "keys": [[[1.0, 0.2], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.5], [0.5, -1.0], [2.0, 0.0], [0.3, -0.6], [1.0, 0.5]]],
    "queries": [[[1.0, 0.0], [0.5, 1.0]], [[0.0, 1.0], [1.2, -1.0]]],
}


def case(policy: str, variant: str, params: dict[str, Any], inputs: dict[str, Any], **expected: Any) -> dict[str, Any]:
    return {
        "id": f"{policy} {variant}", "policy": policy, "variant": variant, "follows": "spec", "params": params,
        "inputs": inputs, "expected": expected,
    }  # fmt: skip


def test_every_case_of_the_carried_file_passes() -> None:
    result = CliRunner().invoke(command, ["policies", str(FILE)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[-1] == f"{len(DOCUMENT['cases'])} passed, 0 failed"
    assert "reference snapkv_official_prefill" in lines
    assert "ok snapkv_vasestyle_k3" in lines


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every number in nested lists and objects."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            yield from leaves(item)
        elif isinstance(item, int | float):
            yield value, key


def test_a_changed_number_fails_in_every_case() -> None:
    changed = copy.deepcopy(DOCUMENT["cases"])
    for item in changed:
        container, key = list(leaves(item["expected"]))[-1]
        value = container[key]
        container[key] = not value if isinstance(value, bool) else value + 1
    for name, problem, _ in check({"cases": changed}):
        assert problem is not None, name


WORKED = [
    # Two heads, each its own moves.
    case(
        "any", "compaction", {}, {"S": 4, "kept": [[0, 3], [1, 2]], "block_size": 1},
        order_preserving={"moves_dst_src": [[[1, 3]], [[0, 1], [1, 2]]], "logical_at_slot": [[0, 3], [1, 2]]},
        hole_filling={"moves_dst_src": [[[1, 3]], [[0, 2]]], "logical_at_slot": [[0, 3], [2, 1]]},
    ),
    # Runs from the first candidate: {1, 2} .7, {3, 4} .2, {5} .9; three stay, so both of the first and slot 5.
    case(
        "random", "block", {"K_total": 4, "prompt_len": 1, "protect_prompt": True, "block": 2},
        {"u": [[0.7, 0.2, 0.9]], "S": 6}, kept=[[0, 1, 2, 5]], evicted=[[3, 4]], margin=[0.5],
        scores=[["inf", 0.7, 0.7, 0.2, 0.2, 0.9]],
    ),
    # The same in a case that gives no S: one protected slot, three runs of two, one recent slot.
    case(
        "random", "block", {"K_total": 4, "prompt_len": 1, "protect_prompt": True, "block": 2, "recent": 1},
        {"u": [[0.7, 0.2, 0.9]]}, kept=[[0, 5, 6, 7]], evicted=[[1, 2, 3, 4]],
    ),
    case("any", "inf", {"n_select": 2}, {"scores": ["-inf", "inf", "nan", 0.0, "inf"]}, kept=[[1, 4]], nan_count=1),
    case(
        "any", "prompt_longer_than_budget", {"K_total": 4, "prompt_len": 6, "protect_prompt": True, "recent": 2},
        {"S": 9}, kept=[[0, 1, 2, 3, 4, 5, 7, 8]],
    ),
    {
        **case(
            "any", "prompt_longer_than_budget", {"K_total": 4, "prompt_len": 6, "protect_prompt": True, "recent": 2},
            {"S": 9}, kept=[[0, 1, 2, 3]],
        ),
        "follows": "TriAttention HF",
    },
    # All attention 0: the widest stay, then the lowest slots that are left.
    case(
        "vase", "degenerate", {"K_total": 4, "recent": 1, "n_sink": 0, "n_large": 2},
        {"attn": [[0.0] * 5], "value_range": [[1.0, 2.0, 9.0, 3.0, 8.0]], "exp_noise": [[1.0] * 5]},
        large_in_order=[[2, 4]], sampled_in_order=[[0]], kept=[[0, 2, 4, 5]],
    ),
    # One positive probability: it is drawn first although its noise is large.
    case(
        "vase", "range_sink_sample_attn", {"K_total": 4, "recent": 1, "n_sink": 0, "n_large": 1},
        {"attn": [[0.0, 0.0, 0.0, 1e-30, 0.0]], "value_range": [[0.0, 0.0, 5.0, 0.0, 0.0]],
         "exp_noise": [[1.0, 1.0, 1.0, 30.0, 1.0]]},
        large_in_order=[[2]], sampled_in_order=[[3, 0]], kept=[[0, 2, 3, 5]],
    ),
    # A protected prompt takes no part of n_large under the paper's rule: two wide slots instead of one.
    case(
        "vase", "paper",
        {"K_total": 6, "recent": 1, "n_sink": 1, "n_large": 2, "prompt_len": 2, "protect_prompt": True},
        {"attn": [[1.0] * 7], "value_range": [[9.0, 9.0, 1.0, 5.0, 2.0, 6.0, 3.0]],
         "exp_noise": [[1.0, 1.0, 0.5, 1.0, 0.1, 1.0, 2.0]]},
        n_big=2, large_in_order=[[5, 3]], sampled_in_order=[[4]], kept=[[0, 1, 3, 4, 5, 7]],
    ),
    # One query head and query per step, K 2, newest 1: token 0 is ahead until token 2 arrives and 1 has caught up.
    case(
        "h2o", "every_step", {"K_total": 2, "recent": 1},
        {"probs": [[[1.0]], [[0.25, 0.75]], [[0.25, 0.5, 0.25]]]},
        kept=[[[0]], [[0, 1]], [[0, 2]]], acc=[[[1.0]], [[1.25, 0.75]], [[1.5, 1.25, 0.25]]],
        logical=[[[0]], [[0, 1]], [[0, 2]]],
    ),
    # Without the prompt the softmax is over slots 2..5 alone; kernel 1, so scores sum to 1 there.
    case(
        "snapkv", "protect_prompt=exclude",
        {"K_total": 5, "window": 2, "kernel": 0, "pool": "none", "prompt_len": 2, "protect_prompt": True},
        {"keys": [[[0.0, 0.0], [9.0, 9.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]],
         "queries": [[[0.0, 0.0], [0.0, 0.0]]]},
        kept=[[0, 1, 2, 6, 7]], score=[[0.25] * 4],
    ),
    case("random", "statistics", {}, {"K": 1024, "r": 64}, mean=963.764706, shared_overlap=1024),
    case("random", "statistics", {}, {"n_select": 3, "n_candidates": 4}, overlap=2.25, overlap_std=0.433013),
]  # fmt: skip


def test_worked_cases_pass() -> None:
    assert {name: problem for name, problem, _ in check({"cases": WORKED}) if problem} == {}


TIES = ("any", "ties", {"n_select": 1}, {"scores": [1.0, 2.0]})
BUDGET = {"K_total": 4, "window": 2}
FORWARDS = {"prompt_len": 1, "decode_forwards": 1}
MISTAKES = [
    (case("snapkv", "other", {}, {}, kept=[]), "no variant 'other' of policy 'snapkv'; known variants of 'snapkv': va"),
    (case("snapkw", "-", {}, {}, kept=[]), "no variant '-' of policy 'snapkw'; known policies: any, full"),
    (case(*TIES), "it expects nothing"),
    (case("any", "ties", {"n_select": 1, "n_selekt": 1}, {"scores": [1.0]}, kept=[[0]]), "no parameter 'n_selekt'"),
    (case("random", "per_head", {"K_total": 1, "blok": 1}, {"u": [[0.1]]}, kept=[[0]]), "no parameter 'blok'"),
    (case("rkv", "vllm_port", {"windo": 1}, {}, kept=[]), "no parameter 'windo'"),
    (case("triattention", "score_other", {}, {}, kept=[]), "no variant 'score_other'"),
    (case(*TIES, sets=[1]), "sets: nothing computes it"),
    (case(*TIES, kept=[[1]], margin=[0.5]), "margin[0]: found 1.0, expected 0.5"),
    ({"id": "bare"}, "not a case of this format: no policy, variant, params"),
    ("text", "not a case of this format: no id, policy"),
    (case("snapkv", "vase_repo_decode", {**BUDGET, "lamda": 1}, KEYS, kept=[]), "no parameter 'lamda'"),
    (case("snapkv", "vase_repo_decode", {**BUDGET, "kernel": 4}, KEYS, kept=[]), "kernel is 4; it must be odd"),
    ({**case("any", "schedule", {}, FORWARDS, events=[]), "follows": "mine"}, "no schedule of 'mine'; known: VaSE"),
]


@pytest.mark.parametrize(("wrong", "words"), MISTAKES)
def test_what_cannot_be_judged_fails_with_its_reason(wrong: Any, words: str) -> None:
    (_, problem, _), (_, other, _) = check({"cases": [wrong, WORKED[0]]})
    assert problem is not None
    assert re.search(re.escape(words), problem), problem
    assert other is None


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [(0.5, 0.500003, False), (1.9, 1.9000015, True), (30.0, 30.00001, False), (30.0, 30.000001, True),
     (10**7, 10**7 + 1, False), ("inf", 1e30, False)],
)  # fmt: skip
def test_numbers_are_compared_to_the_tolerance_and_counts_exactly(wanted: Any, found: Any, same: bool) -> None:
    assert (_difference(wanted, found, TOLERANCE) is None) is same


@pytest.mark.parametrize("document", [[], {}, {"cases": []}, {"cases": "none"}])
def test_a_file_without_cases_fails(document: Any) -> None:
    assert [problem for _, problem, _ in check(document)] == ["not a file of this format: it has no cases"]
