"""Tokens per second and accuracy of each policy against stock vLLM on the packaged reasoner, in one interleaved run.

python infra/bench/tax.py [--problems 104] [--repeats 3] [--keep 264] [--interval 16] [--batch 64] [--dtype bfloat16]
Engines are built one after another in every repeat, so that ratios are formed within a repeat: a shared machine drifts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

from orchestrator.models import resolve
from orchestrator.prompts import Renderer
from orchestrator.tasks.base import Problem, Verdict
from orchestrator.tasks.registry import get
from policies.budget import Protection
from workers.api import EngineSpec, Eviction, Generation, Request, Sampling
from workers.engines import create

ARMS = ("full", "recent", "random", "random_inplace")
MAX_TOKENS = 1500


def spec_of(model: str, longest: int, args: argparse.Namespace, arm: str) -> EngineSpec:
    """Stock vLLM for `full`, an evicting engine otherwise."""
    evicts = arm != "full"
    return EngineSpec(
        kind="vllm",
        model=model,
        revision="",
        dtype=args.dtype,
        max_model_len=2048,
        max_prompt_tokens=longest,
        keep_ceiling=args.keep if evicts else 0,
        interval=args.interval if evicts else 0,
        max_num_seqs=args.batch,
    )


def requests_of(prompts: Sequence[tuple[int, ...]], args: argparse.Namespace, arm: str) -> list[Request]:
    """One greedy request per prompt, the prompt protected."""

    def eviction(seed: int) -> Eviction | None:
        if arm == "full":
            return None
        return Eviction(arm, {}, args.keep, args.interval, Protection.PROMPT, 4, seed)

    sampling = Sampling(0.0, MAX_TOKENS)
    return [Request(f"{arm}-{i}", ids, sampling, eviction(i)) for i, ids in enumerate(prompts)]


def run(spec: EngineSpec, requests: Sequence[Request]) -> tuple[float, dict[int, Generation]]:
    """Tokens per second, start excluded, and the generations by prompt index."""
    engine = create(spec)
    engine.start()
    try:
        began = time.perf_counter()
        engine.submit(requests)
        done: list[Generation] = []
        while len(done) < len(requests):
            done += engine.step()
        seconds = time.perf_counter() - began
    finally:
        engine.close()
    return sum(g.n_output for g in done) / seconds, {int(g.request_id.rsplit("-", 1)[1]): g for g in done}


def accuracy(problems: Sequence[Problem], done: dict[int, Generation]) -> float:
    """Share of problems graded correct."""
    task = get("reasoner_w")
    grades = [task.grade(p, done[i].text, done[i].finish_reason) for i, p in enumerate(problems)]
    return sum(grade.verdict is Verdict.CORRECT for grade in grades) / len(grades)


def main() -> None:
    """Print one row per arm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=104)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=int, default=264)
    parser.add_argument("--interval", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    args = parser.parse_args()
    model = resolve("embedded:reasoner")
    problems = get("reasoner_w").problems(args.problems)
    renderer = Renderer(model)
    prompts = [renderer.render(problem.messages).token_ids for problem in problems]
    longest = max(map(len, prompts))
    speeds: dict[str, list[float]] = {arm: [] for arm in args.arms}
    scores = {}
    for repeat in range(args.repeats):
        for arm in args.arms if repeat % 2 == 0 else reversed(args.arms):
            speed, done = run(spec_of(str(model.path_on_disk), longest, args, arm), requests_of(prompts, args, arm))
            speeds[arm].append(speed)
            scores[arm] = accuracy(problems, done)
            print(f"repeat {repeat + 1}: {arm:15} {speed:8.0f} tokens/s", flush=True)
    base = speeds[args.arms[0]]
    print(f"\n{len(problems)} problems, keep {args.keep}, interval {args.interval}, batch {args.batch}, {args.dtype}")
    print(f"{'arm':15} {'tokens/s':>9} {'/ ' + args.arms[0]:>9} {'min':>6} {'max':>6} {'correct':>8}")
    for arm in args.arms:
        ratios = [mine / theirs for mine, theirs in zip(speeds[arm], base, strict=True)]
        print(
            f"{arm:15} {statistics.median(speeds[arm]):9.0f} {statistics.median(ratios):9.2f} "
            f"{min(ratios):6.2f} {max(ratios):6.2f} {scores[arm]:8.3f}"
        )


if __name__ == "__main__":
    main()
