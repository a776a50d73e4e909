"""Qwen3's forward pass for training on a CPU: parameters named as in its checkpoints, a mask per layer and KV head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from infra.reasoner.recipe import Sizes

IGNORED = -100  # target of a token outside the loss
Turn = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines [B, 1, L, D] of the positions."""


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self._sizes = sizes
        inner, kv = sizes.query_heads * sizes.head_size, sizes.kv_heads * sizes.head_size
        self.q_proj = nn.Linear(sizes.hidden, inner, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.o_proj = nn.Linear(inner, sizes.hidden, bias=False)
        self.q_norm = nn.RMSNorm(sizes.head_size, sizes.norm_epsilon)
        self.k_norm = nn.RMSNorm(sizes.head_size, sizes.norm_epsilon)

    def forward(self, x: torch.Tensor, turn: Turn, death: torch.Tensor | None) -> torch.Tensor:
        """x [B, L, E]; death int64 [H_kv, L] or None."""
        rows, length, _ = x.shape
        size = self._sizes.head_size

        def heads(y: torch.Tensor) -> torch.Tensor:
            return y.view(rows, length, -1, size)

        q = _rotate(self.q_norm(heads(self.q_proj(x)).float()).transpose(1, 2), turn)
        k = _rotate(self.k_norm(heads(self.k_proj(x)).float()).transpose(1, 2), turn)
        v = heads(self.v_proj(x)).transpose(1, 2)
        group = self._sizes.query_heads // self._sizes.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if death is None:
            out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        else:
            mask = _visible(death.repeat_interleave(group, 0), v.dtype)
            out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class Feedforward(nn.Module):
    """Gated linear unit with SiLU."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feedforward, each behind a norm and added to the stream."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden, sizes.norm_epsilon)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden, sizes.norm_epsilon)
        self.mlp = Feedforward(sizes)

    def forward(self, x: torch.Tensor, turn: Turn, death: torch.Tensor | None) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, death)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Body(nn.Module):
    def __init__(self, sizes: Sizes, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, sizes.norm_epsilon)


class Reasoner(nn.Module):
    """The whole decoder; `state_dict` has the names of a Qwen3ForCausalLM checkpoint with tied embeddings."""

    def __init__(self, sizes: Sizes, vocabulary: int, seed: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.model = _Body(sizes, vocabulary)
        self._start(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _start(self, generator: torch.Generator) -> None:
        for name, value in self.named_parameters():
            if value.dim() == 1:
                value.fill_(1.0)
            elif "embed" in name:
                value.normal_(0.0, 0.05, generator=generator)
            else:
                gain = 0.3 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                value.normal_(0.0, gain * value.shape[1] ** -0.5, generator=generator)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, death: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [B, L, V] of tokens and positions int64 [B, L].

        death  int64 [layers, H_kv, L] or None: query i sees key j iff j <= i < death[j], by index in the row
        """
        x = self.model.embed_tokens(tokens)
        turn = self._turn(positions)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, turn, None if death is None else death[index])
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def loss(
        self, tokens: torch.Tensor, positions: torch.Tensor, targets: torch.Tensor, death: torch.Tensor | None
    ) -> torch.Tensor:
        """Mean cross-entropy in nats over the targets that are not IGNORED; targets int64 [B, L]."""
        logits = self(tokens, positions, death)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)

    def _turn(self, positions: torch.Tensor) -> Turn:
        half = torch.arange(0, self.sizes.head_size, 2, dtype=torch.float32) / self.sizes.head_size
        angles = positions[..., None].float() * self.sizes.rope_base**-half
        angles = torch.cat((angles, angles), -1)[:, None]
        return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Rotary embedding of x fp32 [B, H, L, D]."""
    cosine, sine = turn
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


def _visible(death: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [1, H, L, L] of death int64 [H, L]; the own token is always visible."""
    index = torch.arange(death.shape[-1])
    query, key = index[:, None], index[None, :]
    seen = (key <= query) & ((query < death[:, None, :]) | (query == key))
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, float("-inf"))[None]
