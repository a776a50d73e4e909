"""From an EngineSpec to vLLM's arguments, and which adapter ties the core to vLLM's runner on this platform."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm import EngineArgs, envs
from vllm.platforms import current_platform

from policies.base import Needs
from workers.api import EngineSpec
from workers.vllm_engine.settings import KEY, EngineSettings

_POOL_BYTES = 1 << 30  # checked by vLLM before num_gpu_blocks_override takes over
_CAPTURED = 512  # vLLM captures CUDA graphs up to this many tokens unless told otherwise


@dataclass(frozen=True, slots=True)
class Adapter:
    """How one runner of vLLM is reached.

    runner   name in provenance
    module   has ATTESTED and prepare(evicts), and the worker and its extension
    chunked  prompts may be prefilled in chunks
    """

    runner: str
    module: str
    worker: str
    chunked: bool

    def scheduler(self, spec: EngineSpec) -> str:
        """Name of the scheduler: on CUDA one step ahead, as vLLM's own, unless stages of a pipeline run further."""
        return "EvictingAsyncScheduler" if self.worker == "EvictingGPUWorker" and spec.pp == 1 else "EvictingScheduler"

    def plugin(self, spec: EngineSpec, settings: EngineSettings) -> dict[str, Any]:
        """vLLM's arguments that put eviction in place."""
        scheduler = self.scheduler(spec)
        return {
            "async_scheduling": scheduler == "EvictingAsyncScheduler",
            "worker_cls": f"{self.module}.{self.worker}",
            "scheduler_cls": f"workers.vllm_engine.scheduler.{scheduler}",
            "worker_extension_cls": f"{self.module}.EvictionExtension",
            "additional_config": {KEY: settings.as_config()},
        }


_V2 = "workers.vllm_engine.cuda_worker"
CPU = Adapter("v1-cpu", "workers.vllm_engine.cpu_worker", "EvictingCPUWorker", chunked=False)
CPU_V2 = Adapter("v2-cpu", _V2, "EvictingCPUWorkerV2", chunked=True)
CUDA = Adapter("v2", _V2, "EvictingGPUWorker", chunked=True)


def adapter() -> Adapter:
    """V2 on CUDA; on the CPU V1, unless VLLM_USE_V2_MODEL_RUNNER asks for V2, whose kernels need Triton there."""
    if current_platform.is_cuda():
        return CUDA
    return CPU_V2 if envs.VLLM_USE_V2_MODEL_RUNNER else CPU


def settings_of(spec: EngineSpec) -> EngineSettings | None:
    """The plugin's settings; None for an engine without eviction."""
    if spec.keep_ceiling == 0:
        return None
    needs = Needs(**dict(spec.needs))
    return EngineSettings(spec.keep_ceiling, spec.interval, spec.max_prompt_tokens, needs, spec.calibration)


def engine_args(spec: EngineSpec) -> EngineArgs:
    """Arguments for vLLM on this platform.

    On the CPU: eager, since compiling costs more than short runs gain; no chunked prefill, because the V1 runner cannot
    sample with per-request seeds beside a chunk there, so one step must be able to hold every prompt (contracts.md
    section 3). On CUDA vLLM's own defaults, graphs for every batch size that may run, and a pool as large as its memory
    unless pool_blocks says otherwise. Raises SettingsError when the pool cannot hold one request.
    """
    chosen, settings = adapter(), settings_of(spec)
    blocks = spec.pool_blocks or (None if chosen is CUDA else default_pool_blocks(spec))
    if settings is not None and blocks is not None:
        settings.check_pool(blocks - 1, spec.block_size, spec.max_model_len)
    whole = spec.max_num_seqs * spec.max_prompt_tokens
    chunked = chosen.chunked and (settings is None or settings.needs.attention != "prefill")
    platform: dict[str, Any] = {}
    if not chunked:
        platform["max_num_batched_tokens"] = max(spec.max_model_len, whole)
    if chosen is not CUDA:
        platform |= {"enforce_eager": True, "kv_cache_memory_bytes": _POOL_BYTES}
    elif spec.max_num_seqs > _CAPTURED:
        platform["max_cudagraph_capture_size"] = spec.max_num_seqs
    if settings is not None:
        platform |= chosen.plugin(spec, settings)
    arguments: dict[str, Any] = {"enforce_eager": spec.enforce_eager} | platform
    return EngineArgs(
        model=spec.model,
        revision=spec.revision or None,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=True,
        block_size=spec.block_size,
        num_gpu_blocks_override=blocks,
        tensor_parallel_size=spec.tp,
        pipeline_parallel_size=spec.pp,
        disable_log_stats=False,
        seed=0,
        **arguments,
    )


def default_pool_blocks(spec: EngineSpec) -> int:
    """Blocks for max_num_seqs of the largest requests, one more for cached prefixes, and vLLM's null block."""
    settings = settings_of(spec)
    if settings is None:
        largest = -(-spec.max_model_len // spec.block_size)
    else:
        largest = settings.request_blocks(spec.max_prompt_tokens, spec.block_size, spec.max_model_len)
    return (spec.max_num_seqs + 1) * largest + 1
