"""The parts of infra/device_check.py, each a function: python -m infra.device_parts PART FOLDER SECONDS.

A part writes FOLDER/PART.json: whether it passed, and Markdown lines. What it prints goes to the log.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from workers.api import EngineSpec, Request

LAYERS, HEADS, SIZE, BLOCK = 36, 8, 128, 16
REQUESTS, KEEP, INTERVAL, PROMPT = 32, 1024, 64, 128
TAXES = {"random_inplace": 0.01, "random": 0.03, "snapkv": None}
"""Policies of the tax and the most it may be; None is only reported."""
BATCH, STEPS, STRETCHES = 128, 128, 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a part found; lines are Markdown."""

    passed: bool
    lines: Sequence[str]


def kernels(folder: Path, seconds: float) -> Outcome:
    """The tests that launch kernels, which run on the GPU where there is one."""
    del folder, seconds
    tests = ["policies/kernels/tests/launched"]
    if find_spec("vllm") is not None:
        tests.append("workers/vllm_engine/tests/launched")
    done = _run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests])
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    failed = [f"* {line}" for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Outcome(done.returncode == 0 and "skipped" not in last, [f"{' '.join(tests)}: {last}", *failed])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return done


def replay(folder: Path, seconds: float) -> Outcome:
    """One whole-model event of random and one step of queries, captured, then replayed with other numbers."""
    del folder, seconds
    from policies.kernels.compact import fill_holes  # noqa: PLC0415 - parts without Triton run too
    from policies.kernels.select import Draws, hole_moves  # noqa: PLC0415 - as above
    from policies.kernels.tests.cases import Shape, clone, events, paged, rng, same  # noqa: PLC0415 - as above

    slots = KEEP + INTERVAL
    with torch.device("cuda"):
        shape = Shape(LAYERS, HEADS, SIZE, BLOCK, torch.bfloat16)
        cache, table = paged(shape, [slots] * REQUESTS, rng(1))
        batch = events([(slots, PROMPT, INTERVAL, KEEP)] * REQUESTS, table, list(range(REQUESTS)))
        seeds = torch.arange(REQUESTS)
        draws = Draws(seeds, torch.zeros_like(seeds), torch.arange(LAYERS), torch.arange(HEADS))
        positions = torch.arange(slots, dtype=torch.int32).repeat(REQUESTS, LAYERS, HEADS, 1)
    kept, kept_positions = clone(cache), positions.clone()
    fresh, fresh_positions = clone(cache), positions.clone()

    def event(of: Any, at: torch.Tensor) -> None:
        fill_holes(of, at, batch, hole_moves(batch, draws))

    graph = capture(lambda: event(cache, positions))
    equal = []
    for number in (0, 7):
        for ours, source in ((cache, fresh), (kept, fresh)):
            for tensor, original in zip((*ours.keys, *ours.values), (*source.keys, *source.values), strict=True):
                tensor.copy_(original)
        positions.copy_(fresh_positions)
        kept_positions.copy_(fresh_positions)
        draws.events.fill_(number)
        graph.replay()
        event(kept, kept_positions)
        torch.cuda.synchronize()
        equal.append(same(cache, kept) and torch.equal(positions, kept_positions))
    moved = not torch.equal(positions, fresh_positions)
    times = [timed(graph.replay) for _ in range(20)]
    what = f"{LAYERS} layers x {HEADS} heads x {REQUESTS} requests, keep {KEEP}, interval {INTERVAL}, bf16"
    lines = [
        f"event of random, {what}: replay equals launch for event 0: {equal[0]}, for event 7: {equal[1]}",
        f"one such event, replayed: {statistics.median(times) * 1e3:.3f} ms (median of 20)",
    ]
    return Outcome(all(equal) and moved, lines)


def capture(work: Callable[[], None]) -> Any:
    """A CUDA graph of the work, which has run once before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def timed(work: Callable[[], None]) -> float:
    """Seconds of the work on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def graphs(folder: Path, seconds: float) -> Outcome:
    """infra/cuda_check.py on the packaged reasoner: a line a policy, `full` in the mode of each."""
    del folder, seconds
    done = _run([sys.executable, "infra/cuda_check.py"])
    lines = [line for line in done.stdout.splitlines() if "tokens equal" in line]
    captured = bool(lines) and all("full" in line for line in lines)
    return Outcome(done.returncode == 0 and captured, [f"* {line}" for line in lines or done.stderr.splitlines()[-1:]])


def reference(folder: Path, seconds: float) -> Outcome:
    """The engine of this machine in fp32 against the dense reference on the CPU."""
    del folder, seconds
    return compare(*generate(*arms()))


def compare(mode: str, made: Mapping[str, Mapping[str, Any]]) -> Outcome:
    """Generations of arms() against the dense reference: tokens until they part, events and kept sets."""
    from workers.transformers_engine.dense import DenseReference  # noqa: PLC0415 - parts without it run too
    from workers.vllm_engine.tests.cases import INTERVAL as EVERY  # noqa: PLC0415 - as above
    from workers.vllm_engine.tests.cases import MODEL  # noqa: PLC0415 - as above

    dense, passed = DenseReference(MODEL), True
    lines = [f"graphs: {mode}", "", "| request | equal tokens | kept sets |", "|---|---|---|"]
    for request in arms()[1]:
        expected = dense.generate(
            request.prompt_token_ids, request.eviction, EVERY, request.sampling.max_tokens, ignore_end=True
        )
        found = made[request.request_id]
        pairs = zip(found["tokens"], expected.token_ids, strict=True)
        equal = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(expected.token_ids))
        kept = found["kept"] == [expected.events, expected.crc]
        passed &= kept and equal == len(expected.token_ids)
        lines.append(
            f"| {request.request_id} | {equal} of {len(expected.token_ids)} | {'equal' if kept else 'DIFFER'} |"
        )
    return Outcome(passed, lines)


def arms() -> tuple[EngineSpec, list[Request]]:
    """Random, in-place and snapkv on prompts of three lengths, protections in turn; every length is fixed."""
    from policies.budget import Protection  # noqa: PLC0415 - parts without an engine run too
    from workers.vllm_engine.tests.cases import PROMPTS, SPEC, Arm, eviction, needs_of, request  # noqa: PLC0415 - as above

    policies = ("random", "random_inplace", "snapkv")
    requests = [
        request(f"{policy}-{i}", prompt, eviction(policy, list(Protection)[(i + p) % 3], keep=64), ignore_eos=True)
        for p, policy in enumerate(policies)
        for i, prompt in enumerate(PROMPTS)
    ]
    return replace(SPEC, needs=needs_of([Arm(name) for name in policies])), requests


def generate(spec: EngineSpec, requests: Sequence[Request]) -> tuple[str, dict[str, dict[str, Any]]]:
    """(graph mode, tokens and kept sets by request) of an engine in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_generate, spec, list(requests)).result()


def _generate(spec: EngineSpec, requests: list[Request]) -> tuple[str, dict[str, dict[str, Any]]]:
    from workers.vllm_engine.engine import VllmEngine  # noqa: PLC0415 - as above
    from workers.vllm_engine.plugin import register  # noqa: PLC0415 - as above
    from workers.vllm_engine.tests.cases import run  # noqa: PLC0415 - as above

    # from a checkout that is not installed, vLLM finds no entry point of ours
    register()
    engine = VllmEngine(spec)
    mode = engine.start().graph_mode
    made = {
        name: {"tokens": list(found.token_ids), "kept": [found.trace.events, found.trace.kept_crc]}
        for name, found in run(engine, requests).items()
        if found.trace is not None
    }
    engine.close()
    return mode, made


def tax(folder: Path, seconds: float) -> Outcome:
    """Decode speed of each policy at K against stock vLLM held at K, one engine after the other on one GPU."""
    del folder
    from infra.bench.plugin import Held, Pace, Setting, begin, advance, waves  # noqa: PLC0415, I001 - parts without an engine run too
    from workers.vllm_engine.tests.cases import Arm  # noqa: PLC0415 - as above

    ends = time.monotonic() + seconds - 10
    chosen = {name: Arm(name) for name in TAXES}
    paces: dict[str, list[Pace]] = {}
    with random_model() as model:
        sizes = {"keep": KEEP, "interval": INTERVAL, "batch": BATCH, "pairs": STRETCHES, "repeats": STRETCHES}
        rest = {"steps": STEPS, "tokens": STRETCHES * STEPS, "places": 0, "queue": 0}
        setting = Setting(model, "bfloat16", **sizes, **rest)
        blocks = BATCH * ((KEEP + 2 * INTERVAL) // 32 + 2)
        for label in ("stock", "evicting", "stock again"):
            if label == "stock again" and time.monotonic() > ends - 45:
                break
            held = Held(setting.spec(list(chosen.values()) if label == "evicting" else [], BATCH, blocks))
            if label == "evicting":
                for name, arm in chosen.items():
                    held.call(begin, setting.long(arm, STEPS * STRETCHES), setting.lead)
                    paces[name] = [held.call(advance, STEPS) for _ in range(STRETCHES)]
            else:
                paces[label] = [held.call(waves, setting.short(), STEPS) for _ in range(STRETCHES + 1)][1:]
            held.close()
    return judge({name: [pace.speed for pace in found] for name, found in paces.items()})


def judge(speeds: Mapping[str, Sequence[float]]) -> Outcome:
    """Taxes against the mean of the medians of both runs of stock vLLM."""
    stock = [statistics.median(found) for name, found in speeds.items() if name.startswith("stock")]
    base, passed = statistics.mean(stock), True
    lines = ["| policy | tokens/s, median (range) | tax | at most |", "|---|---|---|---|"]
    for name, found in speeds.items():
        middle, most = statistics.median(found), TAXES.get(name)
        cost = 1 - middle / base
        passed &= most is None or cost <= most
        shown = f"{cost:.3f} | {'-' if most is None else most}" if name in TAXES else "- | -"
        lines.append(f"| {name} | {middle:,.0f} ({min(found):,.0f} to {max(found):,.0f}) | {shown} |")
    drift = f"stock vLLM drifted by {stock[-1] / stock[0] - 1:+.1%}" if len(stock) > 1 else "no time to run stock twice"
    what = (
        f"A 4B model with random weights, batch {BATCH}, keep {KEEP}, interval {INTERVAL}, decode steps only; {drift}."
    )
    return Outcome(passed, [what, "", *lines])


@contextmanager
def random_model() -> Iterator[str]:
    """A checkpoint of Qwen3-4B's shape with the reasoner's tokenizer; weights in memory where a folder there exists."""
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - parts without it run too

    from workers.vllm_engine.tests.cases import MODEL  # noqa: PLC0415 - as above

    config = Qwen3Config(
        vocab_size=64, hidden_size=2560, intermediate_size=9728, num_hidden_layers=LAYERS, num_attention_heads=32,
        num_key_value_heads=HEADS, head_dim=SIZE, max_position_embeddings=8192, tie_word_embeddings=True,
    )  # fmt: skip
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        Qwen3ForCausalLM(config).save_pretrained(folder)
        torch.set_default_dtype(torch.float32)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (Path(folder) / name).write_bytes((Path(MODEL) / name).read_bytes())
        torch.cuda.empty_cache()
        yield folder


def main() -> int:
    """Run one part and write what it found."""
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    parts = {part.__name__: part for part in (kernels, replay, graphs, reference, tax)}
    try:
        found = parts[name](folder, seconds)
    except Exception as error:
        found = Outcome(False, [f"{type(error).__name__}: {error}"])
        (folder / f"{name}.json").write_text(json.dumps({"passed": False, "lines": found.lines}), encoding="utf-8")
        raise
    (folder / f"{name}.json").write_text(
        json.dumps({"passed": found.passed, "lines": list(found.lines)}), encoding="utf-8"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
