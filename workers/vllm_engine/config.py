"""Engine-wide settings of the plugin: the value of additional_config["evictbench"], and what cannot run beside it.

Standard library only, so that a test can feed it plain objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from workers.errors import Fatal

KEY = "evictbench"


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """keep is the ceiling of all requests, max_prompt the longest prompt; both in tokens, as is interval."""

    keep: int
    interval: int
    max_prompt: int

    @classmethod
    def from_vllm(cls, vllm_config: Any) -> PluginConfig | None:
        """The plugin's settings, or None when the engine was not asked to evict. Raises Fatal for a malformed value."""
        additional = vllm_config.additional_config
        value = additional.get(KEY) if isinstance(additional, Mapping) else None
        if value is None:
            return None
        names = {f.name for f in fields(cls)}
        if not isinstance(value, Mapping) or set(value) != names or not all(isinstance(v, int) for v in value.values()):
            raise Fatal(f'additional_config["{KEY}"] must hold the integers {sorted(names)}; got {value!r}.')
        return cls(**value)

    def to_additional_config(self) -> dict[str, Any]:
        """What to pass to vLLM as additional_config."""
        return {KEY: asdict(self)}


def check_supported(vllm_config: Any) -> None:
    """Raise Fatal naming every vLLM feature that eviction cannot run beside (vllm_plugin.md section 5)."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    found = [
        name
        for name, active in (
            ("speculative decoding", vllm_config.speculative_config is not None),
            ("a KV connector", vllm_config.kv_transfer_config is not None),
            ("KV events", getattr(vllm_config, "kv_events_config", None) is not None),
            ("KV offload", bool(getattr(vllm_config.cache_config, "kv_offloading_size", None))),
            ("decode context parallelism", parallel.decode_context_parallel_size > 1),
            ("prefill context parallelism", getattr(parallel, "prefill_context_parallel_size", 1) > 1),
            ("dual batch overlap", bool(getattr(parallel, "enable_dbo", False))),
            ("sliding-window attention", model.get_sliding_window() is not None),
            ("multi-head latent attention", bool(model.use_mla)),
            ("hybrid or Mamba layers", bool(getattr(model, "is_hybrid", False))),
            ("encoder-decoder models", bool(getattr(model, "is_encoder_decoder", False))),
        )
        if active
    ]
    if found:
        raise Fatal(
            f"Eviction cannot run with {', '.join(found)}. Turn {'it' if len(found) == 1 else 'them'} off, "
            "or run the policy `full`, which needs no plugin."
        )


def check_spec(spec: Any) -> None:
    """Raise Fatal for a layer whose cache is not plain full attention."""
    if spec.sliding_window is not None or spec.attention_chunk_size is not None or spec.non_causal:
        raise Fatal("Eviction needs plain causal full attention in every layer; this model has windowed, chunked or non-causal layers.")
