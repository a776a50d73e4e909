"""What eviction cannot run beside; each is refused at engine start, by name (vllm_plugin.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec

from policies.base import Needs
from workers.vllm_engine.settings import SettingsError


def refuse_config(config: Any, needs: Needs | None = None) -> None:
    """Raises SettingsError naming every option of a VllmConfig that eviction cannot run beside.

    needs   what the engine's policies need, for the V2 runner; None for the V1 runner on the CPU
    """
    conflicts = _conflicts(config) + (_cpu_conflicts(config) if needs is None else _v2_conflicts(config, needs))
    found = [text for test, text in conflicts if test]
    if found:
        raise SettingsError("KV-cache eviction cannot run with: " + "; ".join(found))


def refuse_specs(specs: Mapping[str, Any]) -> None:
    """Raises SettingsError unless all layers are plain full attention of one shape; KV-sharing layers have no spec."""
    bad = {name: type(spec).__name__ for name, spec in specs.items() if type(spec) is not FullAttentionSpec}
    if bad:
        name, kind = next(iter(bad.items()))
        raise SettingsError(
            f"KV-cache eviction needs plain full-attention layers; {len(bad)} of {len(specs)} are not, "
            f"first {name!r} ({kind})"
        )
    for name, spec in specs.items():
        if spec.sliding_window is not None or spec.attention_chunk_size is not None or spec.non_causal:
            raise SettingsError(f"KV-cache eviction needs causal attention without a window; layer {name!r} has {spec}")
    if len(set(specs.values())) > 1:
        raise SettingsError("KV-cache eviction needs layers of equal shape; this model's layers differ")


def _conflicts(config: Any) -> list[tuple[bool, str]]:
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    heads, tp = model.get_total_num_kv_heads(), parallel.tensor_parallel_size
    events = config.kv_events_config
    return [
        (config.speculative_config is not None, "speculative decoding (rejected tokens would undo events)"),
        (config.kv_transfer_config is not None, "a KV connector (it addresses blocks by logical token)"),
        (events is not None and events.enable_kv_cache_events, "KV events (they name blocks by logical token)"),
        (cache.kv_offloading_size is not None, "KV offloading"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism (slots are sharded)"),
        (parallel.prefill_context_parallel_size > 1, "prefill context parallelism (slots are sharded)"),
        (parallel.enable_dbo, "dual-batch overlap"),
        (cache.cache_dtype not in ("auto", "bfloat16", "float16"), f"KV cache dtype {cache.cache_dtype!r} (use auto)"),
        (heads % tp != 0, f"tensor parallelism {tp}, which does not divide {heads} KV heads"),
        (model.runner_type != "generate", f"runner type {model.runner_type!r}"),
        (model.is_encoder_decoder, "an encoder-decoder model"),
        (model.use_mla, "multi-head latent attention"),
        (model.enable_prompt_embeds, "prompts given as embeddings"),
    ]


def _cpu_conflicts(config: Any) -> list[tuple[bool, str]]:
    return [
        (config.parallel_config.pipeline_parallel_size > 1, "pipeline parallelism on the CPU runner"),
        (
            bool(config.scheduler_config.enable_chunked_prefill),
            "chunked prefill on the CPU (seeded sampling fails there)",
        ),
    ]


def _v2_conflicts(config: Any, needs: Needs) -> list[tuple[bool, str]]:
    scheduler = config.scheduler_config
    return [
        (
            needs.all_layers and config.parallel_config.pipeline_parallel_size > 1,
            "pipeline parallelism beside a policy that scores all layers at once",
        ),
        (
            needs.attention == "prefill" and bool(scheduler.enable_chunked_prefill),
            "chunked prefill beside a policy that needs the attention of whole prompts",
        ),
        (
            bool(scheduler.async_scheduling) and config.parallel_config.pipeline_parallel_size > 1,
            "async scheduling beside pipeline parallelism (it runs several steps too many; --no-async-scheduling)",
        ),
        (
            bool(scheduler.async_scheduling) != str(scheduler.scheduler_cls).endswith("EvictingAsyncScheduler"),
            f"async scheduling {bool(scheduler.async_scheduling)} and scheduler {scheduler.scheduler_cls} (they must "
            "match: EvictingAsyncScheduler with it, EvictingScheduler and --no-async-scheduling without)",
        ),
    ]
