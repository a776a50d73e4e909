"""What eviction costs inside vLLM, and what it gains at equal memory: ratios of one interleaved run on this machine.

python -m infra.bench.plugin [--policies random snapkv] [--pairs 10] [--tokens 4000] [--write]

Tax: decode speed of a full batch against stock vLLM whose requests never exceed `keep` tokens of context, same batch.
An arm's requests generate --tokens tokens each, cut into --pairs stretches; beside each stretch stock vLLM decodes as
many. Prompts differ in length, so that events of different requests fall on different steps.
Gain: time to the last token of whole requests in a pool that holds only --places of them without eviction.
Both engines wait in processes of their own. Exit status 1 when the tax of `random` or `random_inplace` is above 10 %.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

from infra.bench.policy_cost import machine, write
from policies.budget import Protection
from workers.api import EngineSpec, Eviction, Request, Sampling
from workers.engines import create
from workers.vllm_engine.tests.cases import MODEL, Arm, needs_of, registered

MARKS = ("<!-- bench-plugin: begin -->", "<!-- bench-plugin: end -->")
FREE = ("random_inplace", "random")
"""Policies that must cost nearly nothing."""
LIMIT = 0.10
WAVE = 64
"""Tokens by which a request of stock vLLM grows up to `keep`."""
PROMPT, BLOCK = 96, 32


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens generated in so many seconds; preemptions meanwhile."""

    tokens: int
    seconds: float
    preemptions: int = 0

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Held:
    """An engine in a process of its own; idle between calls, each of which returns when its work is done."""

    def __init__(self, spec: EngineSpec) -> None:
        context = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, mp_context=context, initializer=_hold, initargs=(spec,))

    def call(self, work: Callable[..., Any], *given: Any) -> Any:
        """work(engine, *given) over there; `work` is a function of this module."""
        return self._process.submit(_apply, work, given).result()

    def close(self) -> None:
        """End the process."""
        self._process.shutdown()


_held: list[Any] = []


def _hold(spec: EngineSpec) -> None:
    engine = create(spec)
    engine.start()
    _held.append(engine)


def _apply(work: Callable[..., Any], given: Sequence[Any]) -> Any:
    return work(_held[0], *given)


def begin(engine: Any, requests: Sequence[Request], lead: int) -> None:
    """Replace what runs by these requests, and generate `lead` tokens of each, all in step."""
    engine.abort(list(engine._open))
    done = engine.counters().generated_tokens
    engine.submit(requests)
    while engine.counters().generated_tokens - done < lead * len(requests):
        engine.step()


def advance(engine: Any, steps: int) -> Pace:
    """Decode with what runs."""
    done, began = engine.counters().generated_tokens, time.perf_counter()
    for _ in range(steps):
        engine.step()
    return Pace(engine.counters().generated_tokens - done, time.perf_counter() - began)


def waves(engine: Any, requests: Sequence[Request], steps: int) -> Pace:
    """Decode at least `steps` steps of stock vLLM, the requests again and again; neither prefill nor end is timed."""
    paces: list[Pace] = []
    while sum(pace.tokens for pace in paces) < steps * len(requests):
        begin(engine, requests, 1)
        paces.append(advance(engine, WAVE - 2))
    return Pace(sum(pace.tokens for pace in paces), sum(pace.seconds for pace in paces))


def whole(engine: Any, requests: Sequence[Request]) -> Pace:
    """From the first submission to the last token."""
    before, began = engine.counters().preemptions, time.perf_counter()
    engine.submit(requests)
    done: list[Any] = []
    while len(done) < len(requests):
        done += engine.step()
    seconds = time.perf_counter() - began
    return Pace(sum(made.n_output for made in done), seconds, engine.counters().preemptions - before)


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes: see the options of main()."""

    model: str
    dtype: str
    keep: int
    interval: int
    batch: int
    pairs: int
    repeats: int
    steps: int
    tokens: int
    places: int
    queue: int

    @property
    def window(self) -> int:
        """max_model_len of every engine."""
        return PROMPT + self.keep + self.tokens + 4 * self.interval

    @property
    def lead(self) -> int:
        """Tokens of every request before the first stretch: all have evicted."""
        return self.keep + 2 * self.interval - PROMPT

    def plan(self, name: str) -> tuple[int, int]:
        """(stretches, steps of each) of an arm."""
        return (self.pairs, self.tokens // self.pairs) if name in FREE else (self.repeats, self.steps)

    def spec(self, arms: Sequence[Arm], requests: int, blocks: int) -> EngineSpec:
        """Stock vLLM without arms."""
        return EngineSpec(
            kind="vllm",
            model=self.model,
            revision="",
            dtype=self.dtype,
            max_model_len=self.window,
            max_prompt_tokens=self.keep,
            keep_ceiling=self.keep if arms else 0,
            interval=self.interval if arms else 0,
            needs=needs_of(arms) if arms else (),
            max_num_seqs=requests,
            block_size=BLOCK,
            pool_blocks=blocks + 1,
        )

    def short(self) -> list[Request]:
        """A batch of stock vLLM whose context grows from keep - WAVE to keep."""
        return self.requests(None, self.batch, self.keep - WAVE, WAVE)

    def long(self, arm: Arm, steps: int) -> list[Request]:
        """A batch that decodes so many steps after `lead`, and does not end in them."""
        return self.requests(arm, self.batch, PROMPT, self.lead + steps + self.interval)

    def requests(self, arm: Arm | None, count: int, prompt: int, output: int) -> list[Request]:
        """Random prompts of `prompt` tokens and up to an interval less, protected; every token is generated."""
        draws = np.random.Generator(np.random.Philox(key=[prompt, count]))
        made = []
        for index in range(count):
            ids = tuple(draws.integers(5, 49, prompt - index % self.interval).tolist())
            eviction = None
            if arm is not None:
                sizes = (self.keep, self.interval, Protection.PROMPT, 4)
                eviction = Eviction(arm.policy, arm.params, *sizes, seed=index)
            made.append(Request(str(index), ids, Sampling(0.0, output, ignore_eos=True), eviction))
        return made


def taxes(setting: Setting, arms: dict[str, Arm]) -> dict[str, list[tuple[Pace, Pace]]]:
    """Per arm: stretches of (arm, stock vLLM beside it), each pair in the other order than the one before."""
    blocks = setting.batch * (-(-(setting.keep + 2 * setting.interval) // BLOCK) + 1)
    found: dict[str, list[tuple[Pace, Pace]]] = {}
    ours = setting.spec(list(arms.values()), setting.batch, blocks)
    with engines(setting.spec([], setting.batch, blocks), ours) as (stock, evicting):
        short = setting.short()
        stock.call(waves, short, 1)
        for name, arm in arms.items():
            pairs, steps = setting.plan(name)
            evicting.call(begin, setting.long(arm, pairs * steps), setting.lead)
            found[name] = []
            for index in range(pairs):
                both: list[tuple[Held, Callable[..., Pace], tuple[Any, ...]]]
                both = [(evicting, advance, (steps,)), (stock, waves, (short, steps))]
                order = both if index % 2 == 0 else both[::-1]
                paces = {held: held.call(work, *given) for held, work, given in order}
                found[name].append((paces[evicting], paces[stock]))
                show("tax", name, (index + 1, pairs), tax_of(paces[evicting], paces[stock]))
    return found


def gains(setting: Setting, arms: dict[str, Arm]) -> dict[str, list[tuple[Pace, Pace]]]:
    """Per arm: repeats of (arm, stock vLLM in the same round), whole requests in equal pools."""
    blocks = setting.places * -(-(PROMPT + setting.tokens) // BLOCK)
    found: dict[str, list[tuple[Pace, Pace]]] = {name: [] for name in arms}
    ours = setting.spec(list(arms.values()), setting.queue, blocks)
    with engines(setting.spec([], setting.queue, blocks), ours) as (stock, evicting):
        for index in range(setting.repeats):
            full = stock.call(whole, setting.requests(None, setting.queue, PROMPT, setting.tokens))
            for name in list(arms) if index % 2 == 0 else list(arms)[::-1]:
                pace = evicting.call(whole, setting.requests(arms[name], setting.queue, PROMPT, setting.tokens))
                found[name].append((pace, full))
                show("speed / full", name, (index + 1, setting.repeats), pace.speed / full.speed)
    return found


@contextmanager
def engines(*specs: EngineSpec) -> Iterator[list[Held]]:
    """One process for each spec."""
    held = [Held(spec) for spec in specs]
    try:
        yield held
    finally:
        for each in held:
            each.close()


def tax_of(mine: Pace, stock: Pace) -> float:
    """Share of stock vLLM's speed that is lost."""
    return 1 - mine.speed / stock.speed


def show(what: str, name: str, place: tuple[int, int], value: float) -> None:
    """One line of progress."""
    print(f"{what}: {name} {place[0]}/{place[1]}: {value:.3f}", flush=True)


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Interval of the median from order statistics: the narrowest that holds `level`, the range where none does."""
    ordered, n = sorted(values), len(values)
    inner = max((j for j in range(n // 2) if 1 - 2 * binom.cdf(j, n, 0.5) >= level), default=0)
    return ordered[inner], ordered[n - 1 - inner]


def table(found: dict[str, list[tuple[Pace, Pace]]], ratio: Callable[[Pace, Pace], float], head: str) -> list[str]:
    """Markdown: an arm a line, best first."""
    rows = []
    for name, pairs in found.items():
        values = [ratio(mine, stock) for mine, stock in pairs]
        low, high = median_interval(values)
        speeds = [statistics.median(pace.speed for pace in column) for column in zip(*pairs, strict=True)]
        preempted = max(stock.preemptions for _, stock in pairs)
        cells = (
            name, f"{statistics.median(values):.3f}", f"{low:.3f} to {high:.3f}", len(pairs),
            *(f"{speed:,.0f}" for speed in speeds), preempted,
        )  # fmt: skip
        rows.append((statistics.median(values), "| " + " | ".join(map(str, cells)) + " |"))
    columns = ("policy", head, "interval of the median", "pairs", "tokens/s", "tokens/s of stock", "its preemptions")
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *(row for _, row in sorted(rows))]


def stretched(folder: Path, window: int) -> str:
    """The packaged reasoner with a window of so many tokens: its answers mean nothing there, its speed does."""
    target = folder / "model"
    shutil.copytree(MODEL, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"max_position_embeddings": window}))
    return str(target)


def page(
    setting: Setting,
    about: str,
    tax: dict[str, list[tuple[Pace, Pace]]],
    gain: dict[str, list[tuple[Pace, Pace]]],
) -> list[str]:
    """The section of docs/benchmarks.md."""
    return [
        f"Made by `make bench-plugin` on {about}, vLLM's own threads, {setting.dtype}; the packaged reasoner with a "
        f"longer window, keep {setting.keep}, interval {setting.interval}, prompts of up to {PROMPT} tokens that are "
        "protected.",
        "",
        "Eviction tax = 1 - tokens/s of the policy / tokens/s of stock vLLM whose requests never exceed keep tokens of "
        f"context (they grow from keep - {WAVE} to keep), batch {setting.batch}, decode steps only; every pair is two "
        f"stretches side by side. {', '.join(FREE)}: one output of {setting.tokens:,} tokens per request in "
        f"{setting.pairs} stretches; others {setting.repeats} of {setting.steps} tokens. An interval holds the median "
        "with 95 % where there are 6 pairs or more; of 5 it is the range (94 %).",
        "",
        *table(tax, tax_of, "tax"),
        "",
        f"Speed at equal KV memory: {setting.queue} requests of {PROMPT} + {setting.tokens:,} tokens in a pool that "
        f"holds {setting.places} of them whole, so that stock vLLM queues or preempts; first submission to last "
        "token.",
        "",
        *table(gain, lambda mine, full: mine.speed / full.speed, "times full"),
    ]


def main() -> int:
    """Measure, print, write."""
    known = registered()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=list(known), choices=known, help="arms of the tax")
    parser.add_argument("--gain", nargs="*", default=[*FREE, "snapkv"], choices=known, help="arms of the gain")
    parser.add_argument("--pairs", type=int, default=10, help=f"pairs of {', '.join(FREE)}")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of the others, and rounds of the gain")
    parser.add_argument("--steps", type=int, default=96, help="decode steps of a pair of the others")
    parser.add_argument("--tokens", type=int, default=4000, help="output of every request")
    parser.add_argument("--keep", type=int, default=264)
    parser.add_argument("--interval", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--places", type=int, default=4, help="whole requests that the pool of the gain holds")
    parser.add_argument("--queue", type=int, default=16, help="requests of the gain")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    args = parser.parse_args()
    sizes = {name: value for name, value in vars(args).items() if name not in ("policies", "gain", "write")}
    about = machine("cpu")
    with tempfile.TemporaryDirectory() as folder:
        window = Setting("", **sizes).window
        setting = Setting(stretched(Path(folder), window), **sizes)
        tax = taxes(setting, {name: known[name] for name in sorted(args.policies, key=lambda name: name not in FREE)})
        gain = gains(setting, {name: known[name] for name in args.gain}) if args.gain else {}
    lines = page(setting, about, tax, gain)
    print("\n".join(lines))
    if args.write:
        write(lines, MARKS, "Plugin")
    high = [name for name in FREE if name in tax and statistics.median(tax_of(*pair) for pair in tax[name]) > LIMIT]
    if high:
        print(f"tax above {LIMIT:.0%}: {', '.join(high)}")
    return int(bool(high))


if __name__ == "__main__":
    sys.exit(main())
