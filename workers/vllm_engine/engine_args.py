"""From an EngineSpec to vLLM's arguments, on the CPU."""

from __future__ import annotations

from vllm import EngineArgs

from policies.base import Needs
from workers.api import EngineSpec
from workers.vllm_engine.settings import KEY, EngineSettings

_POOL_BYTES = 1 << 30  # checked by vLLM before num_gpu_blocks_override takes over


def settings_of(spec: EngineSpec) -> EngineSettings | None:
    """The plugin's settings; None for an engine without eviction."""
    if spec.keep_ceiling == 0:
        return None
    needs = Needs(**dict(spec.needs))
    return EngineSettings(spec.keep_ceiling, spec.interval, spec.max_prompt_tokens, needs, spec.calibration)


def engine_args(spec: EngineSpec) -> EngineArgs:
    """Arguments for vLLM on the CPU.

    Eager: compiling costs more than short runs gain. No chunked prefill, because the V1 runner cannot sample with
    per-request seeds beside a chunk there; so one step must be able to hold every prompt (contracts.md section 3).
    Raises SettingsError when the pool cannot hold one request.
    """
    settings = settings_of(spec)
    blocks = spec.pool_blocks or default_pool_blocks(spec)
    if settings is not None:
        settings.check_pool(blocks - 1, spec.block_size, spec.max_model_len)
    plugin = {
        "worker_cls": "workers.vllm_engine.cpu_worker.EvictingCPUWorker",
        "scheduler_cls": "workers.vllm_engine.scheduler.EvictingScheduler",
        "worker_extension_cls": "workers.vllm_engine.cpu_worker.EvictionExtension",
        "additional_config": {KEY: settings.as_config() if settings else {}},
    }
    return EngineArgs(
        model=spec.model,
        revision=spec.revision or None,
        dtype=spec.dtype,
        max_model_len=spec.max_model_len,
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=max(spec.max_model_len, spec.max_num_seqs * spec.max_prompt_tokens),
        enable_chunked_prefill=False,
        enable_prefix_caching=True,
        block_size=spec.block_size,
        num_gpu_blocks_override=blocks,
        kv_cache_memory_bytes=_POOL_BYTES,
        tensor_parallel_size=spec.tp,
        pipeline_parallel_size=spec.pp,
        enforce_eager=True,
        disable_log_stats=False,
        seed=0,
        **(plugin if settings else {}),
    )


def default_pool_blocks(spec: EngineSpec) -> int:
    """Blocks for max_num_seqs of the largest requests, one more for cached prefixes, and vLLM's null block."""
    settings = settings_of(spec)
    if settings is None:
        largest = -(-spec.max_model_len // spec.block_size)
    else:
        largest = settings.request_blocks(spec.max_prompt_tokens, spec.block_size, spec.max_model_len)
    return (spec.max_num_seqs + 1) * largest + 1
