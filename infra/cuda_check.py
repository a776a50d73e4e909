"""On a GPU: CUDA graphs against eager execution, policy by policy, same tokens and same kept sets.

    python infra/cuda_check.py [MODEL]

Two pairs of engines: policies that need nothing recorded, whose graphs are pure replay, then those that do. vLLM's
batch-invariant mode makes both executions equal bit for bit, so any difference is ours: a length, slot or victim that
was frozen at capture. Prints one line a policy; exits 1 on a difference, 2 without CUDA.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

# before vLLM reads its environment
os.environ.setdefault("VLLM_BATCH_INVARIANT", "1")

from vllm.platforms import current_platform

from policies.base import Needs
from policies.budget import Protection
from policies.registry import get
from workers.api import EngineSpec, Eviction, Generation, Request, Sampling
from workers.vllm_engine.engine import VllmEngine
from workers.vllm_engine.state import ALWAYS_GIVEN, level

GROUPS = (("random", "recent", "random_block", "random_inplace"), ("snapkv", "rkv", "vase", "h2o"))
INTERVAL, KEEP, TOKENS = 16, 96, 400
PROMPTS = (40, 57, 90)
"""Prompt lengths in tokens."""


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="jobs/models/reasoner")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    if not current_platform.is_cuda():
        print("no CUDA device: CUDA graphs cannot be compared here", file=sys.stderr)
        return 2
    same = [_compare(arguments.model, arguments.dtype, policies) for policies in GROUPS]
    return 0 if all(same) else 1


def _compare(model: str, dtype: str, policies: Sequence[str]) -> bool:
    spec = EngineSpec(
        kind="vllm", model=model, revision="", dtype=dtype, max_model_len=1024, max_prompt_tokens=max(PROMPTS),
        keep_ceiling=KEEP, interval=INTERVAL, needs=_needs(policies), max_num_seqs=64,
    )  # fmt: skip
    eager, _ = _run(replace(spec, enforce_eager=True), policies)
    graphs, mode = _run(spec, policies)
    equal = True
    for policy in policies:
        names = [name for name in eager if name.startswith(f"{policy}/")]
        tokens = sum(eager[name].token_ids == graphs[name].token_ids for name in names)
        kept = sum(eager[name].trace == graphs[name].trace for name in names)
        events = min(trace.events for name in names if (trace := graphs[name].trace) is not None)
        print(
            f"{policy}: {mode}, {len(names)} requests, tokens equal {tokens}, kept sets equal {kept}, {events} events"
        )
        equal &= tokens == kept == len(names) and events > 0
    return equal


def _run(spec: EngineSpec, policies: Sequence[str]) -> tuple[dict[str, Generation], str]:
    """All requests in one batch, whose size shrinks as they end; generations and graph mode."""
    engine = VllmEngine(spec)
    mode = engine.start().graph_mode
    requests = [
        Request(
            f"{policy}/{index}", tuple(5 + i % 40 for i in range(length)),
            Sampling(0.0, TOKENS - 40 * index, ignore_eos=True),
            Eviction(policy, dict(get(policy).example), KEEP, INTERVAL, protection, 4, 7 + index),
        )
        for policy in policies
        for index, (length, protection) in enumerate(zip(PROMPTS, Protection, strict=True))
    ]  # fmt: skip
    engine.submit(requests)
    done: dict[str, Generation] = {}
    while len(done) < len(requests):
        done |= {generation.request_id: generation for generation in engine.step()}
    engine.close()
    return done, mode


def _needs(policies: Sequence[str]) -> tuple[tuple[str, object], ...]:
    asked = [asdict(get(policy)(**get(policy).example).needs) for policy in policies]
    most = {name: max((needs[name] for needs in asked), key=level) for name in asdict(Needs())}
    return tuple(sorted((name, value) for name, value in most.items() if value and name not in ALWAYS_GIVEN))


if __name__ == "__main__":
    sys.exit(main())
