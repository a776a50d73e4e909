"""What a policy sees of one event of one request."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from policies.calibration import Calibration
from policies.draws import Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheView:
    """One event of one request; tensors that the policy does not need may be None.

    shape      (L, H_kv, S): layers of this call (1 when an engine goes layer by layer), KV heads, cached slots
    prot       first slots, never candidates
    recent     last slots, never candidates
    n_select   candidates to keep, so K' = prot + n_select + recent
    t          tokens so far (prompt and generated) = logical position of the next token
    layers     global layer indices, [L]
    heads      global KV head indices, [H_kv]
    draw       keyed draws of this event
    positions  logical position of every slot, int64 [L, H_kv, S]
    keys       post-RoPE keys in the cache's dtype, [L, H_kv, S, D]
    values     in the cache's dtype, [L, H_kv, S, D]
    queries    newest min(w, t) post-RoPE queries, oldest first, [L, H_q, w, D]; query head h reads KV head
               h // (H_q / H_kv)
    attention  attention mass of every slot (needs.attention), fp32 [L, H_kv, S]
    slot_state state of every slot (needs.slot_state floats, Scorer.observe), fp32 [L, H_kv, S, n]
    hidden_states  last hidden state of every token so far, [t, E], row = logical position
    token_ids  token id of every slot, int64 [L, H_kv, S]
    calibration  statistics of every layer and query head, measured before the run (needs.calibration)
    pinned     bool [L, H_kv, S]: candidates that stay before all others, within n_select (probes)
    banned     bool [L, H_kv, S]: candidates that go before all others, also before pinned ones
    """

    shape: tuple[int, int, int]
    prot: int
    recent: int
    n_select: int
    t: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    draw: Draw
    positions: torch.Tensor | None = None
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None
    queries: torch.Tensor | None = None
    attention: torch.Tensor | None = None
    slot_state: torch.Tensor | None = None
    hidden_states: torch.Tensor | None = None
    token_ids: torch.Tensor | None = None
    calibration: Calibration | None = None
    pinned: torch.Tensor | None = None
    banned: torch.Tensor | None = None

    @property
    def keep(self) -> int:
        """K': cached tokens per head after this event."""
        return self.prot + self.n_select + self.recent

    def need(self, name: str) -> torch.Tensor:
        """The tensor of that name. Raises ValueError when the engine gave none, which the policy's needs ask for."""
        tensor: torch.Tensor | None = getattr(self, name)
        if tensor is None:
            raise ValueError(f"this event has no {name}; declare it in the policy's needs.")
        return tensor
