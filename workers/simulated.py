"""A deterministic engine without a model: for scheduler tests and cluster planning only.

Its rows carry engine kind "simulated" and live in cells of their own; they are never shown as results. Lengths are
keyed by the sampling seed, so the same request gives the same generation on any engine, attempt or machine. What time
costs is in CostModel, one place, so that a planner can print its conclusions at half and twice each figure.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from policies.budget import Budget, effective_keep, protected_prefix
from workers.api import AGE_BINS, Counters, EngineSpec, Eviction, EvictionTrace, Generation, Provenance, Request
from workers.errors import Fatal
from workers.vllm_engine.physical import event_lengths


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of an engine, and the share of max_tokens that an answer takes.

    step, per_sequence, per_cached_token  of one decode step: fixed, per running request, per cached token read
    per_prompt_token                      of a prefill
    load                                  from process start to ready
    shortest, spread                      answers take shortest + u * spread of max_tokens, u uniform, cut at 1
    """

    step: float = 2e-3
    per_sequence: float = 5e-5
    per_cached_token: float = 1e-7
    per_prompt_token: float = 2e-5
    load: float = 0.2
    shortest: float = 0.4
    spread: float = 0.65


@dataclass(slots=True)
class _Running:
    request: Request
    length: int
    submitted: float
    started: float = 0.0
    first_token: float = 0.0
    generated: int = 0
    concurrency: int = 1

    @property
    def cached(self) -> int:
        """Tokens in the cache now; an evicting request stays below keep + interval."""
        logical = len(self.request.prompt_token_ids) + self.generated
        eviction = self.request.eviction
        return logical if eviction is None else min(logical, _keep(self.request, eviction) + eviction.recent)


class SimulatedEngine:
    """Implements workers.api.Engine. `sleep` and `now` may be a virtual clock's."""

    def __init__(
        self,
        spec: EngineSpec,
        cost: CostModel = CostModel(),
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._cost, self._sleep, self._now = spec, cost, sleep, now
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._generated = self._finished = 0

    def start(self) -> Provenance:
        """Take as long as a load takes."""
        self._sleep(self._cost.load)
        return Provenance(
            engine_id=f"simulated-{os.getpid()}",
            kind="simulated",
            versions={"python": platform.python_version()},
            runner="simulated",
            graph_mode="none",
            device="none",
            node=platform.node(),
            pid=os.getpid(),
        )

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises Fatal for one whose prompt and answer exceed max_model_len."""
        for request in requests:
            needed = len(request.prompt_token_ids) + request.sampling.max_tokens
            if needed > self._spec.max_model_len:
                raise Fatal(f"{request.request_id}: needs {needed} tokens, max_model_len is {self._spec.max_model_len}")
        self._waiting += [_Running(request, self._length(request), self._now()) for request in requests]

    def step(self) -> list[Generation]:
        """One decode step of every running request, prefills of newly admitted ones included."""
        admitted = self._admit()
        cost = self._cost
        prefill = sum(len(run.request.prompt_token_ids) for run in admitted)
        cached = sum(run.cached for run in self._running)
        seconds = cost.step + cost.per_sequence * len(self._running) + cost.per_cached_token * cached
        self._sleep(seconds + cost.per_prompt_token * prefill)
        now = self._now()
        for run in self._running:
            run.generated += 1
            run.concurrency = max(run.concurrency, len(self._running))
            run.first_token = run.first_token or now
        self._generated += len(self._running)
        ended = [run for run in self._running if run.generated >= run.length]
        self._running = [run for run in self._running if run.generated < run.length]
        self._finished += len(ended)
        return [_generation(run, now, self._spec.interval) for run in ended]

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; unknown ids are ignored."""
        dropped = set(request_ids)
        self._waiting = deque(run for run in self._waiting if run.request.request_id not in dropped)
        self._running = [run for run in self._running if run.request.request_id not in dropped]

    def counters(self) -> Counters:
        """Counts since start."""
        return Counters(len(self._waiting), len(self._running), self._generated, self._finished, preemptions=0)

    def forget_prompts(self) -> None:
        """There is no prefix cache."""

    def close(self) -> None:
        """Nothing is held."""

    def _admit(self) -> list[_Running]:
        admitted = []
        while self._waiting and len(self._running) < self._spec.max_num_seqs:
            run = self._waiting.popleft()
            run.started = self._now()
            self._running.append(run)
            admitted.append(run)
        return admitted

    def _length(self, request: Request) -> int:
        if request.sampling.ignore_eos:
            return request.sampling.max_tokens
        share = self._cost.shortest + self._cost.spread * _digest(request) / 2**64
        return max(1, round(min(1.0, share) * request.sampling.max_tokens))


def _digest(request: Request) -> int:
    # Not the request id: that names the attempt.
    key = repr((request.sampling.seed, request.prompt_token_ids)).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


def _keep(request: Request, eviction: Eviction) -> int:
    prompt = len(request.prompt_token_ids)
    budget = Budget(eviction.keep, eviction.recent, eviction.recent)
    prot = protected_prefix(budget, eviction.protection, prompt, eviction.n_sink, eviction.overflow)
    return effective_keep(budget, prompt, prot, eviction.overflow)


def _generation(run: _Running, now: float, interval: int) -> Generation:
    request = run.request
    seed = _digest(request)
    decode = max(now - run.first_token, 1e-9)
    return Generation(
        request_id=request.request_id,
        text=f"simulated {seed:016x}",
        token_ids=tuple((seed + place) % 97 for place in range(run.length)),
        n_prompt=len(request.prompt_token_ids),
        n_output=run.length,
        finish_reason="length" if run.length >= request.sampling.max_tokens else "stop",
        queue_seconds=run.started - run.submitted,
        ttft_seconds=run.first_token - run.submitted,
        e2e_seconds=now - run.submitted,
        decode_tokens_per_second=(run.length - 1) / decode,
        preemptions=0,
        concurrency=run.concurrency,
        trace=_trace(request, run.length, interval) if request.eviction is not None else None,
    )


def _trace(request: Request, n_output: int, interval: int) -> EvictionTrace:
    """What the length algebra says would have happened (contracts.md section 1); nothing was cached or evicted."""
    eviction, prompt = request.eviction, len(request.prompt_token_ids)
    assert eviction is not None
    keep = _keep(request, eviction)
    events = event_lengths(keep, interval, prompt).events(prompt + n_output - 1)
    peak = min(prompt + n_output - 1, keep + interval)
    return EvictionTrace(
        events=events,
        expected_events=events,
        prompt_kept_min=1.0,
        prompt_kept_mean=1.0,
        cached_peak=peak,
        cached_mean=float(peak),
        overflow=keep > eviction.keep,
        age_histogram=(0,) * AGE_BINS,
        union_alive=0,
        kept_crc=0,
    )
