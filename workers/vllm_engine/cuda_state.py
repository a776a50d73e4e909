"""V2 runner: the one place of vLLM's that sees requests, blocks and metadata of a batch, its ModelState.

vLLM asks a model for its class by `get_model_state_cls`; the evicting model is vLLM's own with that one method.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.model_executor.models import ModelRegistry
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.model_states.interface import ModelState

from policies.kernels.paged import PagedCache
from workers.vllm_engine.binding import attention_layers, make_core
from workers.vllm_engine.cuda_backend import EvictingImpl
from workers.vllm_engine.cuda_core import DeviceCore
from workers.vllm_engine.cuda_eviction import CudaEviction
from workers.vllm_engine.settings import EngineSettings, SettingsError

HOOK = "get_model_state_cls"


class EvictingModelState:
    """Put before a ModelState class.

    token_ids   int32 [requests, max_model_len] of the runner, set by the worker
    """

    eviction: CudaEviction | None = None
    token_ids: torch.Tensor | None = None

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """As the base; a resumed request is admitted with its outputs."""
        super().add_request(req_index, new_req_data)  # type: ignore[misc]
        prompt, admitted = len(new_req_data.prompt_token_ids or ()), len(new_req_data.prefill_token_ids)
        params = new_req_data.sampling_params
        self._bound().core.add(new_req_data.req_id, prompt, admitted, params.extra_args if params else None)

    def remove_request(self, req_id: str) -> None:
        """As the base; facts wait until they are fetched."""
        super().remove_request(req_id)  # type: ignore[misc]
        self._bound().core.requests.finish([req_id])

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """As the base; bind to the layers and their cache. Raises SettingsError for layers of another backend."""
        super().initialize_kv_cache(kv_cache_config, block_tables)  # type: ignore[misc]
        config: Any = self.vllm_config  # type: ignore[attr-defined]
        settings = EngineSettings.from_additional_config(config.additional_config)
        assert settings is not None, "the worker that registers this class has checked it"
        layers = attention_layers(config, kv_cache_config)
        foreign = {type(layer.impl).__name__ for layer in layers.values() if not isinstance(layer.impl, EvictingImpl)}
        if foreign:
            raise SettingsError(
                f"eviction cannot act through {', '.join(sorted(foreign))}: start vLLM with the attention backend "
                "FLASH_ATTN or TRITON_ATTN"
            )
        table = block_tables.input_block_tables[0]
        ahead = bool(config.scheduler_config.async_scheduling)
        core = make_core(DeviceCore, config, settings, layers, table.device, ahead=ahead)
        cache = PagedCache.joined([layer.kv_cache for layer in layers.values()])
        self.eviction = CudaEviction(core, cache, table, block_tables.max_num_batched_tokens)
        for index, layer in enumerate(layers.values()):
            layer.impl.eviction, layer.impl.layer_index = self.eviction, index

    def get_additional_cg_support(self) -> tuple[AttentionCGSupport, str | None]:
        """What FULL graphs may hold: a prompt's attention mass is added by Python, so only decodes then."""
        support, name = super().get_additional_cg_support()  # type: ignore[misc]
        settings = EngineSettings.from_additional_config(self.vllm_config.additional_config)  # type: ignore[attr-defined]
        decodes = AttentionCGSupport.UNIFORM_BATCH
        if settings is not None and settings.needs.attention == "prefill" and decodes.value < support.value:
            return decodes, "evictbench (attention mass of prompts)"
        return support, name

    def preprocess_state(self, input_batch: Any, block_tables: Any, *args: Any) -> None:
        """As the base; events of a real batch, before its metadata and forward, on the current stream."""
        super().preprocess_state(input_batch, block_tables, *args)  # type: ignore[misc]
        assert self.token_ids is not None
        self._bound().begin(input_batch, block_tables[0], self.token_ids)

    def prepare_attn(
        self, input_batch: Any, cudagraph_mode: Any, block_tables: Any, slot_mappings: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """As the base, over physical lengths; the sampler goes on reading vLLM's own tensors."""
        placed = self._bound().place(input_batch, slot_mappings[0])
        made: dict[str, Any] = super().prepare_attn(  # type: ignore[misc]
            placed, cudagraph_mode, block_tables, slot_mappings, *args, **kwargs
        )
        return made

    def _bound(self) -> CudaEviction:
        assert self.eviction is not None, "vLLM binds the cache before it runs a batch"
        return self.eviction


def evicting(base: type[ModelState]) -> type[ModelState]:
    """`base` with eviction."""
    return type(f"Evicting{base.__name__}", (EvictingModelState, base), {})


@contextmanager
def evicting_model(config: Any) -> Iterator[None]:
    """vLLM loads the model of this ModelConfig with our hook; a family's own hook decides what ours extends."""
    model, architecture = ModelRegistry.resolve_model_cls(config.architectures, config)
    stock = ModelRegistry.models[architecture]

    def state_class(self: Any) -> type[ModelState]:
        own = getattr(super(evicted, self), HOOK, None)
        return evicting(own() if own is not None else DefaultModelState)

    evicted = type(model.__name__, (model,), {HOOK: state_class, "__module__": model.__module__})
    ModelRegistry.register_model(architecture, evicted)
    try:
        yield
    finally:
        ModelRegistry.models[architecture] = stock
