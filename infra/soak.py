"""Random arrivals, aborts and preemptions of every policy on one small pool, with invariants checked after every step.

python infra/soak.py [--minutes 30] [--requests N] [--seed 1]
Ends after the minutes or after N requests. A third of the time goes to stock vLLM under the same arrivals, in a process
of its own: memory is flat when ours grows no faster than its. Exit status 1 at the first invariant that does not hold,
and for memory that grows.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import psutil

from policies.budget import Overflow, Protection
from workers.api import EngineSpec, Eviction, Request, Sampling
from workers.vllm_engine.engine import VllmEngine
from workers.vllm_engine.tests.cases import INTERVAL, LONG, SPEC, Arm, needs_of, registered, start

CEILING, PLACES, WAITING = 96, 3, 24
GROWTH = 4.0
"""Allowed growth beyond stock vLLM's, MiB per 1,000 requests: 4 KB a request, less than one event's slot map."""
_EVERY = 50
"""Requests between two looks at memory."""


@dataclass(slots=True)
class Tally:
    """What happened so far; memory: (requests that ended, bytes held), in order."""

    counts: Counter[str] = field(default_factory=Counter)
    most_running: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)

    @property
    def ended(self) -> int:
        """Requests that are over."""
        return self.counts["finished"] + self.counts["given back"] + self.counts["aborted"]


def policies() -> dict[str, Arm]:
    """All that this engine can run without a calibration."""
    return {
        name: arm for name, arm in registered().items() if not arm.needs.calibration and not arm.needs.hidden_states
    }


def make_request(number: int, rng: np.random.Generator, arms: dict[str, Arm]) -> Request:
    """A request of random policy, protection, keep, prompt and length; one in ten keeps everything."""
    prompt = LONG[: int(rng.integers(1, len(LONG)))]
    if rng.random() < 0.1:
        room = CEILING + INTERVAL - len(prompt)
        return Request(f"r{number}", prompt[:60], Sampling(0.0, max(1, min(room, 50))), None)
    arm = arms[str(rng.choice(list(arms)))]
    eviction = Eviction(
        policy=arm.policy,
        params=arm.params,
        keep=int(rng.integers(48, CEILING + 1)),
        recent=INTERVAL,
        protection=Protection(str(rng.choice(list(Protection)))),
        n_sink=int(rng.integers(0, 5)),
        seed=int(rng.integers(0, 2**63)),
        overflow=Overflow.GROW,
    )
    temperature = float(rng.choice([0.0, 1.0]))
    return Request(f"r{number}", prompt, Sampling(temperature, int(rng.integers(1, 300)), seed=number), eviction)


def check(engine: VllmEngine) -> None:
    """Raises AssertionError naming what does not hold between two steps."""
    core: Any = engine._started().engine_core
    scheduler = core.engine_core.scheduler
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    pool = manager.block_pool
    held = {block.block_id for blocks in manager.req_to_blocks.values() for block in blocks}
    assert pool.get_num_free_blocks() + len(held) == pool.num_gpu_blocks - 1, "a block is neither free nor held"
    plugin = core.engine_core.model_executor.driver_worker.worker.model_runner.eviction.core.requests
    for name, blocks in manager.req_to_blocks.items():
        assert len(blocks) <= manager._cap_blocks[name], f"{name} holds more blocks than promised"
        state = plugin._states.get(name)
        computed = scheduler.requests[name].num_computed_tokens
        if state is None or plugin.newest[state.row] < 0 or not computed:
            continue
        assert plugin.newest[state.row] == computed - 1, f"{name}: worker and scheduler disagree on its length"
        lengths = state.schedule.lengths
        assert plugin.peak[state.row] <= lengths.capacity, f"{name} cached more than its capacity"
        if state.events and not lengths.in_place:
            kept = plugin.positions[state.row, ..., : lengths.keep].sort(-1).values
            assert (kept[..., 1:] > kept[..., :-1]).all(), f"{name} holds a token twice"
            assert int(kept.max()) < computed, f"{name} holds a token of the future"
            first = min(state.schedule.prot, state.prompt)
            assert (kept[..., :first].amax(-1) == first - 1).all() if first else True, f"{name} lost a protected token"
    for what, names in (("promise", manager._cap_blocks), ("prefix", manager._shareable), ("state", plugin._states)):
        assert names.keys() <= scheduler.requests.keys(), f"a {what} outlived its request"
    assert not plugin._finished, "a trace was not fetched"
    used = list(plugin._states.values())
    assert len(used) + len(plugin._free) == len(plugin.peak), "a table row leaked"
    records = plugin.records
    taken = sum(state.record is not None for state in used)
    assert taken + len(records._free) == records.queries.shape[1], "a record leaked"


def soak(engine: VllmEngine, minutes: float, most: int, seed: int, *, evicting: bool = True) -> Tally:
    """Keep a queue before the engine until time or requests are over, then drain it; stock vLLM is only loaded."""
    rng, arms, tally = np.random.default_rng(seed), policies(), Tally()
    open_requests: dict[str, Request] = {}
    began, number = time.monotonic(), 0
    while True:
        ending = time.monotonic() - began > 60 * minutes or tally.counts["submitted"] >= most
        if ending and not open_requests:
            return tally
        while not ending and len(open_requests) < WAITING and tally.counts["submitted"] < most:
            request = make_request(number, rng, arms)
            engine.submit([request if evicting else replace(request, eviction=None)])
            open_requests[request.request_id] = request
            number += 1
            tally.counts["submitted"] += 1
        if rng.random() < 0.01:
            victim = str(rng.choice(list(open_requests)))
            engine.abort([victim])
            del open_requests[victim]
            tally.counts["aborted"] += 1
        if rng.random() < 0.001:
            core: Any = engine._started().engine_core
            core.engine_core.scheduler.reset_prefix_cache(reset_running_requests=True)
            tally.counts["resets"] += 1
        for made in engine.step():
            del open_requests[made.request_id]
            tally.counts["given back" if made.finish_reason == "abort" else "finished"] += 1
            tally.counts["tokens"] += made.n_output
            tally.counts["events"] += made.trace.events if made.trace is not None else 0
        if evicting:
            check(engine)
        tally.counts["steps"] += 1
        tally.most_running = max(tally.most_running, len(_running(engine)))
        if not tally.memory or tally.ended >= tally.memory[-1][0] + _EVERY:
            tally.memory.append((tally.ended, held_memory()))


def growth(memory: Sequence[tuple[int, int]]) -> float:
    """MiB per 1,000 requests: least-squares slope over the second half of the looks, when caches have filled."""
    requests, held = np.array(memory[len(memory) // 2 :], np.float64).T
    return float(np.polyfit(requests / 1000, held / 2**20, 1)[0])


def held_memory() -> int:
    """Resident bytes that are in use: garbage collected, and what the allocator only keeps in hand given back."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def _running(engine: VllmEngine) -> list[Any]:
    core: Any = engine._started().engine_core
    running: list[Any] = core.engine_core.scheduler.running
    return running


def specs() -> tuple[EngineSpec, EngineSpec]:
    """Our engine with blocks for PLACES requests, and stock vLLM with as many places."""
    spec = replace(SPEC, keep_ceiling=CEILING, max_num_seqs=16, needs=needs_of(policies().values()))
    longest = max(CEILING, spec.max_prompt_tokens + INTERVAL) + INTERVAL
    blocks, whole = (-(-length // spec.block_size) for length in (longest, spec.max_model_len))
    stock = replace(spec, keep_ceiling=0, interval=0, needs=(), pool_blocks=PLACES * whole + 1)
    return replace(spec, pool_blocks=PLACES * blocks + 1), stock


def run(spec: EngineSpec, minutes: float, most: int, seed: int) -> Tally:
    """Start an engine, soak it, close it. Raises AssertionError for a broken invariant."""
    engine = start(spec)
    try:
        return soak(engine, minutes, most, seed, evicting=spec.keep_ceiling > 0)
    finally:
        engine.close()


def report(name: str, tally: Tally) -> float:
    """Print what happened; the growth of memory."""
    looks = tally.memory[:: max(len(tally.memory) // 12, 1)]
    print(f"{name}: " + ", ".join(f"{what} {count:,}" for what, count in tally.counts.items()))
    print(f"at most {tally.most_running} running; MiB held after requests:", end=" ")
    print(", ".join(f"{held / 2**20:.0f} after {ended:,}" for ended, held in looks))
    rate = growth(tally.memory)
    print(f"growth over the second half: {rate:.2f} MiB per 1,000 requests")
    return rate


def main() -> int:
    """Soak both, then print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--requests", type=int, default=1 << 60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rates = []
    for name, spec, share in zip(("evicting", "stock vLLM"), specs(), (2 / 3, 1 / 3), strict=True):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            try:
                tally = process.submit(run, spec, args.minutes * share, args.requests, args.seed).result()
            except AssertionError as error:
                print(f"invariant broken: {error}")
                return 1
        if len(tally.memory) < 6:
            print(f"too few requests to judge memory: {tally.ended}, at least {6 * _EVERY} are needed")
            return 1
        rates.append(report(name, tally))
    if rates[0] > max(rates[1], 0.0) + GROWTH:
        print(f"memory grows {rates[0] - rates[1]:.2f} MiB per 1,000 requests faster than stock vLLM's")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
