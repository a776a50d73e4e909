"""Real vLLM against the dense reference, stock vLLM and the formula: fp32, greedy, token for token.

One engine at a time per process: stock vLLM runs first and is closed, then all tests share one evicting engine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from policies.budget import Overflow, Protection
from workers.api import EngineSpec, Eviction, Generation, Request, Sampling
from workers.engines import create
from workers.errors import Fatal, PolicyNotActive
from workers.transformers_engine.dense import DenseReference, DenseResult
from workers.vllm_engine.engine import VllmEngine
from workers.vllm_engine.events import EvictionCore

pytestmark = pytest.mark.engine

MODEL = str(Path(__file__).parents[3] / "jobs" / "models" / "reasoner")
INTERVAL, TOKENS = 16, 150
SPEC = EngineSpec(
    kind="vllm",
    model=MODEL,
    revision="",
    dtype="float32",
    max_model_len=512,
    max_prompt_tokens=120,
    keep_ceiling=320,
    interval=INTERVAL,
    max_num_seqs=48,
)
# two problems of the reasoner's family W, as its chat template renders them, and one with 60 tokens of reasoning
FIRST = (
    1, 35, 31, 16, 11, 32, 10, 8, 34, 15, 17, 12, 9, 18, 11, 7, 19, 13, 9, 20, 15, 16, 21, 13, 10, 22, 12, 15, 23, 7,
    9, 24, 8, 13, 25, 8, 15, 26, 10, 8, 2, 3, 4,
)  # fmt: skip
SECOND = (
    1, 35, 31, 8, 7, 32, 9, 15, 34, 15, 17, 7, 11, 18, 7, 11, 19, 9, 8, 20, 16, 16, 21, 14, 12, 22, 9, 7, 23, 7, 11,
    24, 14, 9, 25, 11, 11, 26, 8, 14, 2, 3, 4,
)  # fmt: skip
POLICIES = ("random", "recent", "streaming_llm", "random_inplace")


@pytest.fixture(scope="module")
def dense() -> DenseReference:
    return DenseReference(MODEL)


@pytest.fixture(scope="module")
def long_prompt(dense: DenseReference) -> tuple[int, ...]:
    return (*FIRST, *dense.generate(FIRST, None, INTERVAL, 60, ignore_end=True).token_ids)


@pytest.fixture(scope="module")
def prompts(long_prompt: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """43, 60 and 103 tokens; two share their first block of 32."""
    return SECOND, long_prompt[:60], long_prompt


@pytest.fixture(scope="module")
def stock(prompts: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
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
    found = run(engine, [request(f"full-{i}", prompt, None) for i, prompt in enumerate(prompts)])
    engine.close()
    return {"classes": classes, "tokens": [found[f"full-{i}"].token_ids for i in range(len(prompts))]}


@pytest.fixture(scope="module")
def engine(stock: dict[str, Any]) -> Iterator[VllmEngine]:
    del stock  # must have run and closed
    started = create(SPEC)
    assert isinstance(started, VllmEngine)
    started.start()
    yield started
    started.close()


def request(name: str, prompt: Sequence[int], eviction: Eviction | None, **sampling: Any) -> Request:
    return Request(name, tuple(prompt), Sampling(**({"temperature": 0.0, "max_tokens": TOKENS} | sampling)), eviction)


def eviction(policy: str, protection: Protection, keep: int = 112, **others: Any) -> Eviction:
    return Eviction(policy, {}, keep, INTERVAL, protection, 4, **({"seed": 7} | others))


def run(engine: VllmEngine, requests: Sequence[Request]) -> dict[str, Generation]:
    engine.submit(requests)
    done: dict[str, Generation] = {}
    while len(done) < len(requests):
        done.update({generation.request_id: generation for generation in engine.step()})
    return done


def assert_equal(made: Generation, reference: DenseResult) -> None:
    assert made.trace is not None
    assert list(made.token_ids) == reference.token_ids
    assert (made.trace.events, made.trace.kept_crc) == (reference.events, reference.crc)
    assert reference.positions is not None
    assert sum(made.trace.age_histogram) == reference.positions.numel()
    assert made.trace.union_alive == reference.positions.unique().numel()


def grid(prompts: Sequence[Sequence[int]]) -> list[Request]:
    """Every policy on prompts of three lengths, protections rotating, then prompts longer than keep."""
    made = [
        request(f"{policy}-{i}", prompt, eviction(policy, list(Protection)[(i + p) % 3]))
        for p, policy in enumerate(POLICIES)
        for i, prompt in enumerate(prompts)
    ]
    small: dict[str, Any] = {"keep": 48, "overflow": Overflow.PER_ARM}
    made += [
        request("longer-than-keep", prompts[2], eviction("random", Protection.NONE, **small)),
        request("longer-than-keep-in-place", prompts[2], eviction("random_inplace", Protection.SINKS, **small)),
        request("grown", prompts[2], eviction("random", Protection.PROMPT, keep=48)),
        request("grown-in-place", prompts[1], eviction("random_inplace", Protection.PROMPT, keep=48)),
    ]
    return made


@pytest.fixture(scope="module")
def batched(engine: VllmEngine, prompts: tuple[tuple[int, ...], ...]) -> dict[str, Generation]:
    """All of the grid in one batch, five policies mixed."""
    return run(engine, grid(prompts))


def test_batched_tokens_and_kept_sets_equal_the_dense_reference(
    batched: dict[str, Generation], dense: DenseReference, prompts: tuple[tuple[int, ...], ...]
) -> None:
    evicting = 0
    for made in grid(prompts):
        reference = dense.generate(made.prompt_token_ids, made.eviction, INTERVAL, TOKENS)
        assert_equal(batched[made.request_id], reference)
        evicting += reference.events >= 3
    assert evicting == len(batched)


@pytest.mark.parametrize("name", ["random-1", "random_inplace-2", "longer-than-keep"])
def test_alone_equals_batched(
    engine: VllmEngine, batched: dict[str, Generation], prompts: tuple[tuple[int, ...], ...], name: str
) -> None:
    alone = run(engine, [r for r in grid(prompts) if r.request_id == name])[name]
    assert alone.token_ids == batched[name].token_ids
    assert alone.trace == batched[name].trace


def test_stock_vllm_has_nothing_of_the_plugin(stock: dict[str, Any]) -> None:
    assert all(module.startswith("vllm.") for module in stock["classes"])


def test_full_and_a_keep_that_is_never_reached_equal_stock_vllm(
    engine: VllmEngine, stock: dict[str, Any], prompts: tuple[tuple[int, ...], ...]
) -> None:
    requests = [request(f"full-{i}", prompt, None) for i, prompt in enumerate(prompts)]
    for policy in POLICIES:
        wide = eviction(policy, Protection.PROMPT, keep=SPEC.keep_ceiling)
        requests += [request(f"{policy}-{i}", prompt, wide) for i, prompt in enumerate(prompts)]
    for name, made in run(engine, requests).items():
        assert made.token_ids == stock["tokens"][int(name[-1])]
        assert made.trace is not None
        assert made.trace.events == made.trace.expected_events == 0


def test_arms_that_overwrite_prompt_blocks_share_none(
    engine: VllmEngine, dense: DenseReference, long_prompt: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
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
            found = run(engine, [request(name, long_prompt, arm, max_tokens=80) for name, arm in arms.items()])
            for name, arm in arms.items():
                assert_equal(found[name], dense.generate(long_prompt, arm, INTERVAL, 80))
                hits = 96 if arm.protection is Protection.PROMPT else 0
                assert cached[name] == hits or (wave == 0 and policy == "random")


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


def test_a_small_pool_queues_and_never_preempts(engine: VllmEngine, long_prompt: tuple[int, ...]) -> None:
    """Forty requests, blocks for three: each holds ceil((112 + 16 + 16) / 32) = 5 of 16 blocks."""
    engine.close()
    small = VllmEngine(replace(SPEC, keep_ceiling=112, pool_blocks=16))
    small.start()
    requests = [
        request(f"{policy}-{i}", long_prompt[: 40 + i], eviction(policy, Protection.PROMPT, seed=i), max_tokens=100)
        for i in range(10)
        for policy in POLICIES
    ]
    done = run(small, requests)
    assert small.counters().preemptions == 0
    assert all(made.preemptions == 0 for made in done.values())
    core: Any = small._started().engine_core
    pool = core.engine_core.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == 15
    small.close()


def test_a_llama_with_another_shape_equals_its_dense_reference(tmp_path: Path) -> None:
    """Random weights; three query heads per KV head of 64 elements, where the reasoner has two of 32."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=49, hidden_size=96, intermediate_size=128, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=1024, initializer_range=0.3, eos_token_id=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[config.eos_token_id] = 0.0  # never the largest logit: outputs run to their limit
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(MODEL) / name, tmp_path)
    llama, reference = VllmEngine(replace(SPEC, model=str(tmp_path))), DenseReference(str(tmp_path))
    llama.start()
    arms = [
        request(f"{policy}-{i}", prompt, eviction(policy, Protection.SINKS, keep=64), max_tokens=120)
        for policy in POLICIES
        for i, prompt in enumerate((FIRST, SECOND[:20]))
    ]
    found = run(llama, arms)
    llama.close()
    evicting = 0
    for arm in arms:
        expected = reference.generate(arm.prompt_token_ids, arm.eviction, INTERVAL, 120)
        assert_equal(found[arm.request_id], expected)
        evicting += expected.events >= 3
    assert evicting == len(arms)


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
