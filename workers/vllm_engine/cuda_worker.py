"""V2 runner: vLLM's workers with eviction. Named by vLLM's worker_cls and worker_extension_cls strings."""

from __future__ import annotations

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from workers.vllm_engine.binding import planned_table_bytes
from workers.vllm_engine.cache_spec import EvictingAttentionSpec
from workers.vllm_engine.cuda_backend import override_backends, restore_backends
from workers.vllm_engine.cuda_state import EvictingModelState, evicting_model
from workers.vllm_engine.footprint import table_bytes
from workers.vllm_engine.records import RecordShape
from workers.vllm_engine.refusals import refuse_config, refuse_specs
from workers.vllm_engine.settings import EngineSettings, SettingsError
from workers.vllm_engine.telemetry import RankFacts, measure

ATTESTED = {"state": "EvictingDefaultModelState", "spec": "EvictingAttentionSpec"}
"""What evictbench_describe must say of an engine that evicts; which backend evicts is refused at binding."""


def prepare(evicts: bool) -> None:
    """Before an engine starts in this process."""
    if not evicts:
        restore_backends()


class _Evicting:
    """Put before a worker of vLLM."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        settings = EngineSettings.from_additional_config(vllm_config.additional_config)
        if settings is None:
            raise SettingsError("this worker needs additional_config['evictbench']; without eviction use vLLM's")
        refuse_config(vllm_config, settings.needs)
        if not vllm_config.use_v2_model_runner:
            raise SettingsError("vLLM chose its V1 runner; eviction on CUDA needs V2 (unset VLLM_USE_V2_MODEL_RUNNER)")
        override_backends()
        super().__init__(vllm_config, *args, **kwargs)  # type: ignore[call-arg]
        self.settings = settings

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """As the base; the model asks for our state class."""
        with evicting_model(self.model_config):  # type: ignore[attr-defined]
            super().load_model(*args, **kwargs)  # type: ignore[misc]
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        if not isinstance(runner.model_state, EvictingModelState):
            raise SettingsError(f"vLLM made a {type(runner.model_state).__name__}: another plugin overrides the model")
        runner.model_state.token_ids = runner.req_states.all_token_ids.gpu

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """vLLM's specs with a bounded number of blocks per request."""
        specs: dict[str, Any] = super().get_kv_cache_spec()  # type: ignore[misc]
        refuse_specs(specs)
        longest = self.model_config.max_model_len  # type: ignore[attr-defined]
        return {
            name: EvictingAttentionSpec.of(spec, self.settings, longest)
            if isinstance(spec, FullAttentionSpec)
            else spec
            for name, spec in specs.items()
        }


class EvictingGPUWorker(_Evicting, Worker):
    """vLLM's GPU worker."""

    def determine_available_memory(self) -> int:
        """As the base, less what our tables will take: they are allocated with the cache."""
        available = int(super().determine_available_memory())
        if self.cache_config.kv_cache_memory_bytes:
            return available
        model, parallel = self.model_config, self.parallel_config
        shape = RecordShape(
            model.get_num_layers(parallel), model.get_num_kv_heads(parallel), model.get_num_attention_heads(parallel),
            model.get_head_size(), model.dtype,
        )  # fmt: skip
        scheduler = self.scheduler_config
        ahead = bool(scheduler.async_scheduling)
        return available - planned_table_bytes(self.settings, shape, scheduler.max_num_seqs, ahead)


class EvictingCPUWorkerV2(_Evicting, CPUWorker):
    """vLLM's CPU worker with its V2 runner, where Triton has a backend for it."""


class EvictionExtension:
    """Methods that vLLM mixes into its worker; called by collective_rpc."""

    model_runner: Any

    def evictbench_pop_traces(
        self, request_ids: list[str], cached: list[int | None] | None = None
    ) -> list[RankFacts | None]:
        """Facts of finished requests, which are forgotten; None for unknown ones. `cached` as in measure()."""
        known = cached or [None] * len(request_ids)
        core = self.model_runner.model_state.eviction.core
        return [measure(core, *request) for request in zip(request_ids, known, strict=True)]

    def evictbench_bytes(self) -> dict[str, int]:
        """Bytes of this rank's tables (footprint.table_bytes)."""
        return table_bytes(self.model_runner.model_state.eviction.core)

    def evictbench_describe(self) -> dict[str, str]:
        """Names of the classes in place, for attestation."""
        return describe(self.model_runner)


def describe(runner: Any) -> dict[str, str]:
    """Names of the classes in place, and the CUDA graphs that vLLM settled on."""
    groups = [group for groups in runner.attn_groups for group in groups]
    context = runner.compilation_config.static_forward_context
    names = [name for group in groups for name in group.layer_names]
    specs = {type(group.kv_cache_spec).__name__ for group in runner.kv_cache_config.kv_cache_groups}
    return {
        "state": type(runner.model_state).__name__,
        "backend": ",".join(sorted({group.backend.__name__ for group in groups})),
        "impl": ",".join(sorted({type(context[name].impl).__name__ for name in names})),
        "spec": ",".join(sorted(specs)),
        "graph": runner.compilation_config.cudagraph_mode.name,
    }
