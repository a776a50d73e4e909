"""The core without a model: ranks that hold slices of the heads, batches, rows that are used again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from policies.base import Scorer
from policies.budget import Protection
from policies.view import CacheView
from workers.api import Eviction, EvictionTrace
from workers.vllm_engine.events import EvictionCore, Rows, Source
from workers.vllm_engine.physical import NEVER
from workers.vllm_engine.settings import EngineSettings, to_extra_args
from workers.vllm_engine.telemetry import RankFacts, full_trace, measure, merge

SETTINGS = EngineSettings(keep_ceiling=24, interval=4, max_prompt_tokens=20)


@dataclass(frozen=True)
class KeySum(Scorer):
    """Keeps the slots with the largest keys."""

    name = "key_sum"

    def score(self, view: CacheView) -> torch.Tensor:
        return view.need("keys").sum(-1)


LAYERS, HEADS = (0, 1), (0, 1, 2, 3)
REQUESTS = {
    "random": Eviction("random", {}, 24, 4, Protection.PROMPT, 4, 5),
    "window": Eviction("recent", {}, 20, 4, Protection.NONE, 4, 5),
    "block": Eviction("random_block", {"block": 3}, 24, 4, Protection.SINKS, 2, 5),
    "in-place": Eviction("random_inplace", {}, 24, 4, Protection.PROMPT, 4, 5),
}
PROMPTS = {"random": 9, "window": 17, "block": 3, "in-place": 11}


def no_rows(row: int, slots: int) -> Rows:
    raise AssertionError(f"row {row}: none of these policies reads keys ({slots} slots)")


def no_tokens(row: int, count: int) -> torch.Tensor:
    raise AssertionError(f"row {row}: none of these policies reads token ids ({count} tokens)")


NOTHING = Source(no_rows, no_tokens)


def drive(core: EvictionCore, names: Sequence[str], outputs: int) -> None:
    """Prefill all, then decode until each request has `outputs` tokens."""
    for name in names:
        core.requests.add(name, PROMPTS[name], PROMPTS[name], to_extra_args(REQUESTS[name]))
    prompts = np.array([PROMPTS[name] for name in names])
    core.step(names, np.zeros_like(prompts), prompts, NOTHING)
    for step in range(outputs - 1):
        core.step(names, prompts + step, np.ones_like(prompts), NOTHING)


def facts(core: EvictionCore, name: str) -> RankFacts:
    found = measure(core, name)
    assert found is not None
    return found


def trace(cores: Sequence[EvictionCore], name: str) -> EvictionTrace:
    return merge([facts(core, name) for core in cores], 0)


def core(heads: Sequence[int] = HEADS) -> EvictionCore:
    return EvictionCore(SETTINGS, LAYERS, heads, max_requests=4)


@pytest.fixture(scope="module")
def together() -> dict[str, EvictionTrace]:
    whole = core()
    drive(whole, list(REQUESTS), 60)
    return {name: trace([whole], name) for name in REQUESTS}


@pytest.mark.parametrize("name", REQUESTS)
def test_tensor_parallel_ranks_merge_to_the_whole(name: str, together: dict[str, EvictionTrace]) -> None:
    ranks = [core(HEADS[:2]), core(HEADS[2:])]
    for rank in ranks:
        drive(rank, [name], 60)
    assert trace(ranks, name) == together[name]
    assert together[name].events > 5


def test_facts_are_what_the_policies_mean(together: dict[str, EvictionTrace]) -> None:
    assert together["random"].prompt_kept_min == together["in-place"].prompt_kept_min == 1.0
    assert together["window"].prompt_kept_mean == 0.0
    # a prompt of 17 and 4 recent grow K' to 21; events before tokens 25, 29, .. 73 leave 21 and tokens 73, 74, 75
    assert together["window"].overflow
    assert together["window"].cached_peak == 25
    assert together["window"].union_alive == 24
    assert sum(together["window"].age_histogram) == 24 * len(LAYERS) * len(HEADS)
    assert together["random"].union_alive > 28
    assert together["in-place"].cached_peak == 24
    assert together["random"].cached_peak == 28


def test_the_order_of_a_batch_changes_nothing(together: dict[str, EvictionTrace]) -> None:
    reverse = core()
    drive(reverse, list(reversed(REQUESTS)), 60)
    assert {name: trace([reverse], name) for name in REQUESTS} == together


def test_a_used_row_starts_afresh(together: dict[str, EvictionTrace]) -> None:
    used = core()
    for _ in range(3):
        drive(used, list(REQUESTS), 60)
        used.requests.finish(list(REQUESTS))
    for _ in range(4):
        drive(used, list(REQUESTS), 60)
        assert {name: trace([used], name) for name in REQUESTS} == together


def test_a_resumed_request_starts_again_with_its_outputs_admitted() -> None:
    resumed = core()
    drive(resumed, ["random"], 10)
    resumed.requests.add("random", PROMPTS["random"], PROMPTS["random"] + 10, to_extra_args(REQUESTS["random"]))
    resumed.step(["random"], np.array([0]), np.array([19]), NOTHING)
    state = resumed.requests.batch(["random"]).states[0]
    # 19 admitted tokens and 4 recent ones fit into 24, so lengths are those of a request with 9
    assert (state.admitted, state.schedule.prot, state.schedule.lengths.start) == (19, 9, 28)
    for n in range(19, 60):
        resumed.step(["random"], np.array([n]), np.array([1]), NOTHING)
    assert facts(resumed, "random").events == state.schedule.lengths.events(60) == 8


def test_a_request_without_eviction_must_not_outgrow_its_blocks() -> None:
    plain = core()
    plain.requests.add("plain", 10, 10, None)
    plain.step(["plain"], np.array([27]), np.array([1]), NOTHING)
    with pytest.raises(RuntimeError, match="'plain' holds 29 tokens, its blocks allow 28"):
        plain.step(["plain"], np.array([28]), np.array([1]), NOTHING)
    assert plain.requests.batch(["plain"]).start[0] == NEVER


def test_a_trace_without_eviction_equals_the_measured_one() -> None:
    plain = core()
    plain.requests.add("plain", 10, 10, None)
    plain.step(["plain"], np.array([0]), np.array([10]), NOTHING)
    for n in range(10, 22):
        plain.step(["plain"], np.array([n]), np.array([1]), NOTHING)
    assert trace([plain], "plain") == full_trace(10, 22, len(LAYERS) * len(HEADS))


def test_a_scoring_policy_reads_the_cache_it_is_given() -> None:
    """Keys reach a user's policy through view.need; here the cache's mean key says what to keep."""
    whole = core()
    seen: list[tuple[int, int]] = []

    def gather(row: int, slots: int) -> Rows:
        seen.append((row, slots))
        keys = torch.arange(slots, dtype=torch.float32).expand(len(LAYERS), len(HEADS), slots)[..., None]
        return keys, keys

    whole.requests.add("random", 9, 9, to_extra_args(REQUESTS["random"]))
    state = whole.requests.batch(["random"]).states[0]
    state.policy = KeySum()
    whole.step(["random"], np.array([0]), np.array([9]), Source(gather, no_tokens))
    whole.step(["random"], np.array([28]), np.array([1]), Source(gather, no_tokens))
    assert seen == [(0, 28)]
    assert whole.requests.positions[state.row, 0, 0, :24].sort().values.tolist() == [*range(9), *range(13, 28)]


def test_scores_that_are_nan_are_counted_over_ranks() -> None:
    def gather(row: int, slots: int) -> Rows:
        keys = torch.zeros(len(LAYERS), 2, slots, 3)
        keys[:, :, 12:14] = float("nan")
        return keys, keys

    ranks = [core(HEADS[:2]), core(HEADS[2:])]
    for rank in ranks:
        rank.requests.add("random", 9, 9, to_extra_args(REQUESTS["random"]))
        rank.requests.batch(["random"]).states[0].policy = KeySum()
        rank.step(["random"], np.array([0]), np.array([9]), Source(gather, no_tokens))
        rank.step(["random"], np.array([28]), np.array([1]), Source(gather, no_tokens))
    assert trace(ranks, "random").nan_scores == 2 * len(LAYERS) * len(HEADS)
