"""FLASH_ATTN and TRITON_ATTN with our write of new rows; their attention kernels and metadata stay untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl
from vllm.v1.attention.selector import _cached_get_attn_backend

if TYPE_CHECKING:
    from workers.vllm_engine.cuda_eviction import CudaEviction


class EvictingImpl:
    """Put before an attention implementation. `eviction` and `layer_index` are set once the cache exists."""

    eviction: CudaEviction | None = None
    layer_index: int = 0

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        """As the base; records for policies that need it. The keys of this step are in the cache already."""
        if self.eviction is not None and attn_metadata is not None:
            slots, scale = attn_metadata.slot_mapping, self.scale  # type: ignore[attr-defined]
            self.eviction.record(self.layer_index, query, key, scale, slots)
        made: torch.Tensor = super().forward(  # type: ignore[misc]
            layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs
        )
        return made

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """One launch per layer: a token's rows go to its slot, or to the victim of each head."""
        if self.eviction is None:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)  # type: ignore[misc]
        else:
            self.eviction.write(self.layer_index, key, value, slot_mapping)


class EvictingFlashImpl(EvictingImpl, FlashAttentionImpl):
    """FlashAttention."""


class EvictingTritonImpl(EvictingImpl, TritonAttentionImpl):
    """vLLM's Triton kernel."""


class EvictingFlashBackend(FlashAttentionBackend):
    """FLASH_ATTN."""

    @staticmethod
    def get_impl_cls() -> type[FlashAttentionImpl]:
        """Writes rows where a step has any."""
        return EvictingFlashImpl


class EvictingTritonBackend(TritonAttentionBackend):
    """TRITON_ATTN."""

    @staticmethod
    def get_impl_cls() -> type[TritonAttentionImpl]:
        """Writes rows where a step has any."""
        return EvictingTritonImpl


BACKENDS = {
    AttentionBackendEnum.FLASH_ATTN: EvictingFlashBackend,
    AttentionBackendEnum.TRITON_ATTN: EvictingTritonBackend,
}


def override_backends() -> None:
    """Make these backends ours in this process."""
    for name, backend in BACKENDS.items():
        register_backend(name, f"{backend.__module__}.{backend.__qualname__}")
    _cached_get_attn_backend.cache_clear()


def restore_backends() -> None:
    """Make them vLLM's again: an engine without eviction in the same process must be stock."""
    for name in BACKENDS:
        name.clear_override()
    _cached_get_attn_backend.cache_clear()
