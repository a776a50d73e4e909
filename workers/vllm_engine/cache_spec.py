"""Scheduler side: a KV cache spec whose requests hold a bounded number of blocks, and its manager.

Bounded blocks and reservation at admission mean that no running request is ever preempted for memory. Leading
arguments only, tails passed through: vLLM extends these signatures every few releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from workers.vllm_engine.settings import EngineSettings, from_extra_args, protected_prefix


@dataclass(frozen=True, kw_only=True)
class EvictingAttentionSpec(FullAttentionSpec):
    """Full attention whose requests never hold more than reserved_tokens(A) tokens."""

    settings: EngineSettings
    max_model_len: int

    @classmethod
    def of(cls, spec: FullAttentionSpec, settings: EngineSettings, max_model_len: int) -> Self:
        """`spec` with the engine's settings."""
        base = {f.name: getattr(spec, f.name) for f in fields(FullAttentionSpec)}
        return cls(**base, settings=settings, max_model_len=max_model_len)

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        """One spec of a group's layers; the base rebuilds only the fields it knows."""
        assert len({(s.settings, s.max_model_len) for s in specs}) == 1
        base: FullAttentionSpec = FullAttentionSpec.merge(specs)
        return cls.of(base, specs[0].settings, specs[0].max_model_len)

    def request_blocks(self, admitted: int) -> int:
        """Blocks a request with `admitted` tokens may come to hold."""
        return self.settings.request_blocks(admitted, self.block_size, self.max_model_len)

    def max_memory_usage_bytes(self, vllm_config: VllmConfig) -> int:
        """Bytes one layer needs for the largest request; vLLM's start-up check and concurrency report use it."""
        del vllm_config
        return self.request_blocks(self.settings.max_prompt_tokens) * self.page_size_bytes


class EvictingManager(FullAttentionManager):
    """Caps a request's blocks, promises all of them at admission, shares only what no event can overwrite."""

    def __init__(self, kv_cache_spec: EvictingAttentionSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, *args, **kwargs)
        self.spec = kv_cache_spec
        self._cap_blocks: dict[str, int] = {}
        self._shareable: dict[str, int] = {}
        # vLLM keeps block 0 as the null block
        pool = self.block_pool.num_gpu_blocks - 1
        kv_cache_spec.settings.check_pool(pool, self.block_size, kv_cache_spec.max_model_len)

    def get_num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[KVCacheBlock],
        *args: Any,
        **kwargs: Any,
    ) -> int:
        """Blocks needed now; at admission the request's whole cap and what was promised to the others."""
        if not kwargs.get("apply_admission_cap"):
            clipped = self._clip(request_id, num_tokens)
            return super().get_num_blocks_to_allocate(request_id, clipped, new_computed_blocks, *args, **kwargs)
        cap = self.spec.request_blocks(num_tokens)
        self._cap_blocks[request_id] = cap
        whole = cap * self.block_size
        own = super().get_num_blocks_to_allocate(request_id, whole, new_computed_blocks, *args, **kwargs)
        return own + self._promised()

    def allocate_new_blocks(self, request_id: str, num_tokens: int, *args: Any, **kwargs: Any) -> list[KVCacheBlock]:
        """Blocks for num_tokens logical tokens, never more than the cap."""
        return super().allocate_new_blocks(request_id, self._clip(request_id, num_tokens), *args, **kwargs)

    def cache_blocks(self, request: Request, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Hash only blocks inside the protected prefix: events overwrite the others, whose hash would then lie."""
        limit = self._shareable.get(request.request_id)
        if limit is None:
            limit = self._shareable[request.request_id] = shareable_tokens(request)
        super().cache_blocks(request, min(num_tokens, limit), *args, **kwargs)

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """Return the request's blocks and forget its promise."""
        self._cap_blocks.pop(request_id, None)
        self._shareable.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)

    def _clip(self, request_id: str, num_tokens: int) -> int:
        cap = self._cap_blocks.get(request_id)
        return num_tokens if cap is None else min(num_tokens, cap * self.block_size)

    def _promised(self) -> int:
        """Blocks that running requests may still ask for; one that holds none is not admitted yet."""
        held = self.req_to_blocks
        return sum(max(cap - len(held[name]), 0) for name, cap in self._cap_blocks.items() if held.get(name))


def shareable_tokens(request: Request) -> int:
    """Leading tokens of a request whose cache rows never change, in tokens; all of them when it does not evict."""
    params = request.sampling_params
    eviction = from_extra_args(params.extra_args if params is not None else None)
    if eviction is None:
        return request.max_tokens + request.num_prompt_tokens
    return min(protected_prefix(eviction, request.num_prompt_tokens), request.num_prompt_tokens)


def register_spec() -> None:
    """Tell vLLM which manager serves EvictingAttentionSpec."""
    # a registry that is not empty is taken as complete: built-in specs must be in it before ours
    register_all_kvcache_specs(None)
    KVCacheSpecRegistry.register(EvictingAttentionSpec, EvictingManager, uniform_type_base_spec=FullAttentionSpec)
