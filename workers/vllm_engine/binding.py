"""What every adapter does once vLLM has its cache: facts of this worker's part of the model, and a core for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from vllm.model_executor.models.utils import extract_layer_index

from policies.calibration import BESIDE_MODEL, Calibration, CalibrationError, ModelFacts
from policies.calibration import load as load_calibration
from workers.vllm_engine.events import EvictionCore
from workers.vllm_engine.records import Records, RecordShape
from workers.vllm_engine.settings import EngineSettings, SettingsError

Core = TypeVar("Core", bound=EvictionCore)


def attention_layers(vllm_config: Any, kv_cache_config: Any) -> dict[int, Any]:
    """vLLM's attention layers of this worker by global index, ascending.

    Raises SettingsError where some have no cache of their own.
    """
    context = vllm_config.compilation_config.static_forward_context
    sharing = [name for name, layer in context.items() if getattr(layer, "kv_sharing_target_layer_name", None)]
    if sharing:
        raise SettingsError(
            f"KV-cache eviction needs layers with caches of their own; {len(sharing)} read another's, "
            f"first {sharing[0]!r}"
        )
    names = kv_cache_config.kv_cache_groups[0].layer_names
    return {extract_layer_index(name): context[name] for name in sorted(names, key=extract_layer_index)}


def make_core(
    kind: type[Core],
    vllm_config: Any,
    settings: EngineSettings,
    layers: dict[int, Any],
    device: torch.device,
    **options: bool,
) -> Core:
    """A core for these layers; `options` are its kind's.

    Raises SettingsError for what the engine's policies need and this model lacks.
    """
    held = list(layers.values())
    most = vllm_config.scheduler_config.max_num_seqs
    return kind(
        settings,
        list(layers),
        global_heads(vllm_config.parallel_config, held[0].kv_cache.shape[1]),
        most,
        _records(settings, held, most, device),
        _calibration(settings, vllm_config.model_config),
        device,
        **options,
    )


def planned_table_bytes(settings: EngineSettings, shape: RecordShape, most: int, ahead: bool) -> int:
    """Bytes of the tables of positions and records that an engine with `most` requests keeps beside its cache.

    ahead   as for cuda_core.DeviceCore: positions are held twice
    """
    needs, slots = settings.needs, shape.layers * shape.heads * settings.capacity
    per_slot = 4 * (bool(needs.attention) + needs.slot_state)
    queries = shape.layers * needs.recent_queries * shape.query_heads * shape.head_size * shape.dtype.itemsize
    # positions of finished requests wait until their trace is fetched (state.Requests)
    return most * (2 * 4 * slots * (1 + ahead) + per_slot * slots + queries)


def global_heads(parallel: Any, local: int) -> range:
    """Global indices of this rank's KV heads; TP divides them (refusals.py)."""
    rank = parallel.rank % parallel.tensor_parallel_size
    return range(rank * local, (rank + 1) * local)


def _records(settings: EngineSettings, layers: Sequence[Any], most: int, device: torch.device) -> Records | None:
    needs, impl, cache = settings.needs, layers[0].impl, layers[0].kv_cache
    if needs.attention and (impl.logits_soft_cap or impl.alibi_slopes is not None or impl.sinks is not None):
        raise SettingsError("attention mass cannot be recorded beside soft caps, ALiBi or attention sinks")
    if not (needs.recent_queries or needs.attention or needs.slot_state):
        return None
    shape = RecordShape(len(layers), cache.shape[1], impl.num_heads, impl.head_size, cache.dtype)
    return Records(needs, shape, most, settings.capacity, device)


def _calibration(settings: EngineSettings, config: Any) -> Calibration | None:
    """The model's calibration. Raises SettingsError when it is needed and missing, or another model's."""
    if not settings.needs.calibration:
        return None
    model, named = Path(config.model), settings.calibration
    path = Path(named) if named else model / BESIDE_MODEL
    try:
        return load_calibration(path, ModelFacts.read(model, config.revision or ""))
    except (CalibrationError, OSError, KeyError, ValueError) as error:
        raise SettingsError(str(error)) from None
