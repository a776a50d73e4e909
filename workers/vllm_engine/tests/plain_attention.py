"""Attention in torch over TRITON_ATTN's cache and metadata, for the process where kernels are interpreted."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl

from workers.vllm_engine.cuda_backend import EvictingImpl, EvictingTritonBackend


class PlainAttention(TritonAttentionImpl):
    """TRITON_ATTN's forward, request by request."""

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        **scales: Any,
    ) -> torch.Tensor:
        """Causal from the last row of each request backwards, over the first seq_lens slots of its blocks."""
        del layer, key, value, scales
        if attn_metadata is None:
            return output.zero_()
        block = kv_cache.shape[2]
        ends = attn_metadata.query_start_loc.tolist()
        for row, length in enumerate(attn_metadata.seq_lens.tolist()):
            first, last = ends[row : row + 2]
            slot = torch.arange(length)
            rows = kv_cache[attn_metadata.block_table[row, slot // block].long(), :, slot % block]
            keys, values = (part.transpose(0, 1) for part in rows.split(self.head_size, dim=-1))
            queries = query[first:last].unflatten(1, (self.num_kv_heads, -1)).permute(1, 2, 0, 3)
            logits = queries @ keys[:, None].transpose(2, 3) * self.scale
            seen = torch.arange(length - (last - first), length)[:, None] >= slot
            weights = logits.masked_fill(~seen, float("-inf")).softmax(-1)
            made = (weights @ values[:, None]).permute(2, 0, 1, 3)
            output[first:last] = made.reshape(output[first:last].shape)
        return output


class PlainImpl(EvictingImpl, PlainAttention):
    """With eviction."""


class PlainBackend(EvictingTritonBackend):
    """TRITON_ATTN's cache, metadata and writes."""

    @staticmethod
    def get_impl_cls() -> type[TritonAttentionImpl]:
        """Attention in torch."""
        return PlainImpl
