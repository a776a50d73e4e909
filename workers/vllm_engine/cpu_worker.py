"""V1 runner on the CPU: request identity. Named by vLLM's worker_cls and worker_extension_cls strings."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from workers.vllm_engine.binding import attention_layers, make_core
from workers.vllm_engine.cache_spec import EvictingAttentionSpec
from workers.vllm_engine.cpu_backend import CpuEviction, EvictingBuilder, EvictingImpl, describe
from workers.vllm_engine.events import EvictionCore
from workers.vllm_engine.footprint import table_bytes
from workers.vllm_engine.layout import CacheRows
from workers.vllm_engine.records import CPU
from workers.vllm_engine.refusals import refuse_config, refuse_specs
from workers.vllm_engine.settings import EngineSettings, SettingsError
from workers.vllm_engine.telemetry import RankFacts, measure

BACKEND = "workers.vllm_engine.cpu_backend.EvictingCPUBackend"
ATTESTED = {
    "backend": "EvictingCPUBackend",
    "builder": "EvictingBuilder",
    "impl": "EvictingImpl",
    "spec": "EvictingAttentionSpec",
}
"""What evictbench_describe must say of an engine that evicts."""


def prepare(evicts: bool) -> None:
    """Before an engine starts in this process."""
    if not evicts:
        restore_backend()
    ask_for_tiles()


class EvictingCPUModelRunner(CPUModelRunner):
    """Keeps the plugin's requests in step with vLLM's and binds both to the cache."""

    eviction: CpuEviction | None = None

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        settings = EngineSettings.from_additional_config(vllm_config.additional_config)
        if settings is None:
            raise SettingsError(
                "EvictingCPUWorker needs additional_config['evictbench']; without eviction use vLLM's worker"
            )
        super().__init__(vllm_config, device)
        self.settings = settings

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """vLLM's specs with a bounded number of blocks per request."""
        specs = super().get_kv_cache_spec()
        refuse_specs(specs)
        longest = self.model_config.max_model_len
        return {
            name: EvictingAttentionSpec.of(spec, self.settings, longest)
            if isinstance(spec, FullAttentionSpec)
            else spec
            for name, spec in specs.items()
        }

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any) -> None:
        """Bind the plugin once the cache exists."""
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        layers = attention_layers(self.vllm_config, kv_cache_config)
        builders = [group.get_metadata_builder(0) for groups in self.attn_groups for group in groups]
        if not all(isinstance(b, EvictingBuilder) for b in builders) or not all(
            isinstance(layer.impl, EvictingImpl) for layer in layers.values()
        ):
            raise SettingsError(f"another plugin overrides CPU_ATTN, eviction would not act: {describe(self)}")
        core = make_core(EvictionCore, self.vllm_config, self.settings, layers, CPU)
        cache = CacheRows([layer.kv_cache for layer in layers.values()], builders[0].isa)
        self.eviction = CpuEviction(core, cache, lambda: self.input_batch.req_ids, self._token_ids)
        for builder in builders:
            builder.eviction = self.eviction
        for index, layer in enumerate(layers.values()):
            layer.impl.eviction, layer.impl.layer_index = self.eviction, index

    def _token_ids(self, row: int, count: int) -> torch.Tensor:
        return torch.from_numpy(self.input_batch.token_ids_cpu[row, :count].astype("int64"))

    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        """Only real batches evict; dummy runs never come through here."""
        assert self.eviction is not None
        self._follow(scheduler_output)
        self.eviction.live = True
        try:
            return super().execute_model(scheduler_output, *args, **kwargs)
        finally:
            self.eviction.end_step()

    def _follow(self, output: SchedulerOutput) -> None:
        """Admit, resume and finish the requests that vLLM's runner is about to."""
        assert self.eviction is not None
        requests = self.eviction.core.requests
        requests.finish(list(output.finished_req_ids))
        for new in output.scheduled_new_reqs:
            prompt = len(new.prompt_token_ids or ())
            requests.add(new.req_id, prompt, prompt, new.sampling_params.extra_args if new.sampling_params else None)
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            state = self.requests[request_id]
            extra_args = state.sampling_params.extra_args if state.sampling_params else None
            requests.add(request_id, state.num_prompt_tokens, state.num_tokens, extra_args)


class EvictingCPUWorker(CPUWorker):
    """vLLM's CPU worker with the runner above and CPU_ATTN overridden."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        refuse_config(vllm_config)
        override_backend()
        super().__init__(vllm_config, *args, **kwargs)

    def init_device(self) -> None:
        """vLLM names its runner class in here, so the runner is made a second time, as ours."""
        ask_for_tiles()
        super().init_device()
        if self.use_v2_model_runner:
            raise SettingsError("vLLM chose its V2 runner on the CPU; set VLLM_USE_V2_MODEL_RUNNER=0")
        self.model_runner = EvictingCPUModelRunner(self.vllm_config, torch.device("cpu"))


class EvictionExtension:
    """Methods that vLLM mixes into its worker; called by collective_rpc."""

    model_runner: EvictingCPUModelRunner

    def evictbench_pop_traces(
        self, request_ids: list[str], cached: list[int | None] | None = None
    ) -> list[RankFacts | None]:
        """Facts of finished requests, which are forgotten; None for unknown ones. `cached` as in measure()."""
        known = cached or [None] * len(request_ids)
        assert self.model_runner.eviction is not None
        return [measure(self.model_runner.eviction.core, *request) for request in zip(request_ids, known, strict=True)]

    def evictbench_bytes(self) -> dict[str, int]:
        """Bytes of this rank's tables (footprint.table_bytes)."""
        assert self.model_runner.eviction is not None
        return table_bytes(self.model_runner.eviction.core)

    def evictbench_describe(self) -> dict[str, str]:
        """Names of the classes in place, for attestation."""
        return describe(self.model_runner)


def ask_for_tiles() -> None:
    """Have Linux grant this process the AMX tile registers, which it does on request only.

    oneDNN asks when a batch is large enough to use them; a first batch of one row reaches vLLM's attention kernel
    before that and dies of an illegal instruction.
    """
    if torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def override_backend() -> None:
    """Make CPU_ATTN ours in this process."""
    register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
    _cached_get_attn_backend.cache_clear()


def restore_backend() -> None:
    """Make CPU_ATTN vLLM's again: an engine without eviction in the same process must be stock."""
    AttentionBackendEnum.CPU_ATTN.clear_override()
    _cached_get_attn_backend.cache_clear()
