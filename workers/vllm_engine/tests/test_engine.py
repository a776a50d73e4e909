"""Real vLLM against the dense reference, stock vLLM and the formula: fp32, greedy, token for token.

One engine at a time per process: stock vLLM runs first and is closed, then all tests share one evicting engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import pytest
from vllm import SamplingParams

from policies.budget import Overflow, Protection
from workers.api import Generation, Request
from workers.errors import Fatal, PolicyNotActive
from workers.transformers_engine.dense import DenseReference
from workers.vllm_engine.engine import VllmEngine
from workers.vllm_engine.events import EvictionCore
from workers.vllm_engine.physical import event_lengths
from workers.vllm_engine.settings import to_extra_args
from workers.vllm_engine.tests.cases import (
    FIRST,
    INTERVAL,
    LONG,
    MODEL,
    PROMPTS,
    SECOND,
    SPEC,
    TOKENS,
    assert_equal,
    eviction,
    request,
    run,
    start,
)

pytestmark = pytest.mark.engine

POLICIES = ("random", "recent", "streaming_llm", "random_inplace")


@pytest.fixture(scope="module")
def dense() -> DenseReference:
    return DenseReference(MODEL)


@pytest.fixture(scope="module")
def stock() -> dict[str, Any]:
    """Tokens of vLLM without the plugin, and the classes it ran."""
    engine = VllmEngine(replace(SPEC, keep_ceiling=0, interval=0))
    engine.start()
    runner = engine._started().model_executor.driver_worker.worker.model_runner
    group = runner.attn_groups[0][0]
    classes = {
        type(runner).__module__,
        group.backend.__module__,
        type(runner.kv_cache_config.kv_cache_groups[0].kv_cache_spec).__module__,
    }
    found = run(engine, [request(f"full-{i}", prompt, None) for i, prompt in enumerate(PROMPTS)])
    engine.close()
    return {"classes": classes, "tokens": [found[f"full-{i}"].token_ids for i in range(len(PROMPTS))]}


@pytest.fixture(scope="module")
def engine(stock: dict[str, Any]) -> Iterator[VllmEngine]:
    del stock  # must have run and closed
    started = start(SPEC)
    yield started
    started.close()


def grid() -> list[Request]:
    """Every policy on prompts of three lengths, protections rotating, then prompts longer than keep."""
    made = [
        request(f"{policy}-{i}", prompt, eviction(policy, list(Protection)[(i + p) % 3]))
        for p, policy in enumerate(POLICIES)
        for i, prompt in enumerate(PROMPTS)
    ]
    small: dict[str, Any] = {"keep": 48, "overflow": Overflow.PER_ARM}
    made += [
        request("longer-than-keep", PROMPTS[2], eviction("random", Protection.NONE, **small)),
        request("longer-than-keep-in-place", PROMPTS[2], eviction("random_inplace", Protection.SINKS, **small)),
        request("grown", PROMPTS[2], eviction("random", Protection.PROMPT, keep=48)),
        request("grown-in-place", PROMPTS[1], eviction("random_inplace", Protection.PROMPT, keep=48)),
    ]
    return made


@pytest.fixture(scope="module")
def batched(engine: VllmEngine) -> dict[str, Generation]:
    """All of the grid in one batch, five policies mixed."""
    return run(engine, grid())


def test_batched_tokens_and_kept_sets_equal_the_dense_reference(
    batched: dict[str, Generation], dense: DenseReference
) -> None:
    evicting = 0
    for made in grid():
        reference = dense.generate(made.prompt_token_ids, made.eviction, INTERVAL, TOKENS)
        assert_equal(batched[made.request_id], reference)
        evicting += reference.events >= 3
    assert evicting == len(batched)


@pytest.mark.parametrize("name", ["random-1", "random_inplace-2", "longer-than-keep"])
def test_alone_equals_batched(engine: VllmEngine, batched: dict[str, Generation], name: str) -> None:
    alone = run(engine, [r for r in grid() if r.request_id == name])[name]
    assert alone.token_ids == batched[name].token_ids
    assert alone.trace == batched[name].trace


def test_stock_vllm_has_nothing_of_the_plugin(stock: dict[str, Any]) -> None:
    assert all(module.startswith("vllm.") for module in stock["classes"])


def test_full_and_a_keep_that_is_never_reached_equal_stock_vllm(engine: VllmEngine, stock: dict[str, Any]) -> None:
    requests = [request(f"full-{i}", prompt, None) for i, prompt in enumerate(PROMPTS)]
    for policy in POLICIES:
        wide = eviction(policy, Protection.PROMPT, keep=SPEC.keep_ceiling)
        requests += [request(f"{policy}-{i}", prompt, wide) for i, prompt in enumerate(PROMPTS)]
    for name, made in run(engine, requests).items():
        assert made.token_ids == stock["tokens"][int(name[-1])]
        assert made.trace is not None
        assert made.trace.events == made.trace.expected_events == 0


def test_arms_that_overwrite_prompt_blocks_share_none(
    engine: VllmEngine, dense: DenseReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All protections of one prompt (103 tokens, blocks of 32), in waves, so that later ones could hit."""
    vllm, cached = engine._started(), {}
    step = vllm.step

    def watch() -> list[Any]:
        outputs = step()
        cached.update({out.request_id: out.num_cached_tokens for out in outputs if out.finished})
        return outputs

    monkeypatch.setattr(vllm, "step", watch)
    for wave in range(2):
        for policy in ("random", "recent"):
            arms = {
                f"{policy}-{protection}-{wave}": eviction(
                    policy, protection, keep=64, overflow=Overflow.PER_ARM, seed=wave
                )
                for protection in Protection
            }
            found = run(engine, [request(name, LONG, arm, max_tokens=80) for name, arm in arms.items()])
            for name, arm in arms.items():
                assert_equal(found[name], dense.generate(LONG, arm, INTERVAL, 80))
                hits = 96 if arm.protection is Protection.PROMPT else 0
                assert cached[name] == hits or (wave == 0 and policy == "random")


def test_the_prefix_cache_holds_prompts_and_nothing_generated(engine: VllmEngine, dense: DenseReference) -> None:
    """A second turn that begins with the first one's prompt (60 tokens) and answer, blocks of 32."""
    arm = eviction("random", Protection.PROMPT)
    engine.forget_prompts()  # the answer to LONG[:60] may be the rest of LONG, which others asked
    first = run(engine, [request("turn-1", LONG[:60], arm)])["turn-1"]
    # one whole block of the prompt; the answer would have filled two more
    prompt = (*LONG[:60], *first.token_ids[:55])
    assert len(prompt) > 96
    second = run(engine, [request("turn-2", prompt, arm, max_tokens=40)])["turn-2"]
    assert second.n_cached_prompt == 32
    assert_equal(second, dense.generate(prompt, arm, INTERVAL, 40))


def test_seeded_sampling_repeats_whatever_the_batch(engine: VllmEngine) -> None:
    arm = eviction("random", Protection.PROMPT)
    one = request("alone", FIRST, arm, temperature=2.0, seed=2**64 - 3)
    alone = run(engine, [one])["alone"]
    others = [request(f"other-{i}", SECOND, arm, temperature=2.0, seed=i) for i in range(5)]
    assert run(engine, [*others, one])["alone"].token_ids == alone.token_ids
    changed = request("changed", FIRST, arm, temperature=2.0, seed=5)
    assert run(engine, [changed])["changed"].token_ids != alone.token_ids


def test_requests_that_cannot_run_are_refused_before_any_is_queued(engine: VllmEngine) -> None:
    good = request("good", FIRST, None)
    arm = eviction("random", Protection.PROMPT)
    refused = [
        (request("bad", FIRST, eviction("randum", Protection.PROMPT)), "Did you mean 'random'"),
        (request("bad", FIRST, eviction("random", Protection.PROMPT, keep=400)), "keep 400 exceeds the engine's"),
        (request("bad", FIRST, None, max_tokens=400), "does not evict, so prompt 43"),
        (request("bad", FIRST * 3, arm), "exceeds max_prompt_tokens 120"),
        (request("bad", (), arm), "empty prompt"),
        (request("bad", FIRST, replace(arm, recent=17)), "recent 17 exceeds"),
        (request("bad", FIRST, arm, temperature=4.0), "temperature must be in"),
    ]
    for bad, says in refused:
        with pytest.raises(Fatal, match=f"request 'bad'.*{says}"):
            engine.submit([good, bad])
    with pytest.raises(Fatal, match=r"ids repeat: \['good'\]"):
        engine.submit([good, good])
    assert (engine.counters().waiting, engine.counters().running) == (0, 0)


def test_aborted_requests_leave_no_state(engine: VllmEngine, batched: dict[str, Generation]) -> None:
    del batched
    requests = engine._started().model_executor.driver_worker.worker.model_runner.eviction.core.requests
    free = len(requests._free)
    arm = eviction("random", Protection.PROMPT)
    engine.submit([request("a", FIRST, arm), request("b", FIRST, arm)])
    for _ in range(100):
        assert not engine.step()
    engine.abort(["a", "unknown"])
    remaining: list[Generation] = []
    while not remaining:
        remaining = engine.step()
    assert [made.request_id for made in remaining] == ["b"]
    assert len(requests._free) == free
    assert engine.counters().running == 0


def test_preempted_rows_alone_are_given_back_and_run_again(
    engine: VllmEngine, batched: dict[str, Generation], stock: dict[str, Any]
) -> None:
    names = ["random-1", "random_inplace-1", "longer-than-keep"]
    evicting = [r for r in grid() if r.request_id in names]
    before = engine.counters().preemptions
    engine.submit([*evicting, request("full-0", PROMPTS[0], None)])
    for _ in range(90):
        assert not engine.step()
    engine._started().engine_core.engine_core.scheduler.reset_prefix_cache(reset_running_requests=True)
    done: dict[str, Generation] = {}
    while len(done) < 4:
        done.update({generation.request_id: generation for generation in engine.step()})
    assert engine.counters().preemptions == before + 4
    assert done["full-0"].token_ids == stock["tokens"][0]
    assert done["full-0"].preemptions == 1
    assert {name: (done[name].finish_reason, done[name].trace) for name in names} == dict.fromkeys(
        names, ("abort", None)
    )
    again = run(engine, evicting)
    assert [(again[name].token_ids, again[name].trace) for name in names] == [
        (batched[name].token_ids, batched[name].trace) for name in names
    ]


def test_a_request_of_another_client_resumes_after_preemption(engine: VllmEngine) -> None:
    """As under vllm serve, where nobody gives it up: it goes on with its outputs admitted."""
    vllm, arm = engine._started(), eviction("random", Protection.PROMPT)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args=to_extra_args(arm))
    internal = vllm.add_request("foreign", {"prompt_token_ids": list(SECOND)}, params)
    outputs: list[Any] = []
    for step in range(400):
        if step == 120:
            vllm.engine_core.engine_core.scheduler.reset_prefix_cache(reset_running_requests=True)
        outputs += [out for out in vllm.step() if out.finished]
        if outputs:
            break
    assert len(outputs[0].outputs[0].token_ids) == TOKENS
    facts = vllm.collective_rpc("evictbench_pop_traces", args=([internal],))[0][0]
    admitted = len(SECOND) + 120
    lengths = event_lengths(112, INTERVAL, admitted)
    assert facts.events == lengths.events(len(SECOND) + TOKENS - 1) == 2


def test_200_requests_on_a_pool_for_three_queue_and_are_never_preempted(engine: VllmEngine) -> None:
    """Each may come to hold 128 tokens, or its prompt and 32: 4 or 5 of 15 blocks. Neighbours share no prompt block."""
    engine.close()
    small = VllmEngine(replace(SPEC, keep_ceiling=112, pool_blocks=16))
    small.start()
    options = itertools.product(POLICIES, Protection)
    arms = [eviction(policy, kind, keep=40, overflow=Overflow.PER_ARM) for policy, kind in options]
    requests = []
    for i in range(200):
        prompt, arm = (5 + i % 40, *LONG[1 : 30 + i % 74]), replace(arms[i % len(arms)], seed=i)
        requests.append(request(str(i), prompt, arm, max_tokens=5 + i % 31, ignore_eos=True))
    core: Any = small._started().engine_core
    scheduler = core.engine_core.scheduler
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    small.submit(requests)
    done: dict[str, Generation] = {}
    most = 0
    while len(done) < len(requests):
        done.update({made.request_id: made for made in small.step()})
        most = max(most, len(scheduler.running))
        assert len(scheduler.running) <= 3
        assert all(len(blocks) <= 5 for blocks in manager.req_to_blocks.values())
    assert most == 3
    assert {(made.preemptions, made.finish_reason) for made in done.values()} == {(0, "length")}
    assert small.counters().preemptions == 0
    assert sum(made.trace.events > 0 for made in done.values() if made.trace is not None) > 60
    assert manager.block_pool.get_num_free_blocks() == 15
    small.close()


def test_the_engine_has_no_child_process_that_could_outlive_it() -> None:
    lonely = VllmEngine(SPEC)
    lonely.start()
    children = psutil.Process().children(recursive=True)
    lonely.close()
    lonely.close()
    assert children == []


def test_a_pool_that_cannot_hold_one_request_is_refused() -> None:
    with pytest.raises(Fatal, match="needs 11 blocks of 32 tokens, the pool has 7"):
        VllmEngine(replace(SPEC, pool_blocks=8)).start()


def test_a_policy_that_does_not_act_fails_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvictionCore, "_firing", lambda *args: np.array([], np.int64))
    with pytest.raises(PolicyNotActive, match="0 events measured, the formula says"):
        VllmEngine(SPEC).start()


def test_needs_that_the_engine_cannot_give_are_named() -> None:
    with pytest.raises(Fatal, match="hidden_states"):
        VllmEngine(replace(SPEC, needs=(("attention", "step"), ("hidden_states", True)))).start()
