"""Query statistics of a checkpoint, measured at the input of its rotary embedding (policies.md section 8.2).

That input is the query after q_norm where a model has one, and after a fused qkv projection was split. It is taken
where every architecture of Transformers hands it over: at the call of `apply_rotary_pos_emb` in the attention's module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel

from policies.calibration import PAIRINGS, Calibration, CalibrationError, Meta, ModelFacts, band_dims

_ROTATE = "apply_rotary_pos_emb"
# Rotations of unit-sized numbers agree to fp32 rounding when pairing, frequencies and scaling are right.
_TOLERANCE = 1e-3

Seen = Callable[[int, torch.Tensor, torch.Tensor], None]
"""(layer, queries before, queries after the rotation), both [B, H_q, T, D]."""


class _Sums:
    """Sums of Re q, Im q and |q| over tokens, fp64 [3, L, H_q, D/2], and the tokens of each layer."""

    def __init__(self, model: ModelFacts, rotary: Any, device: str) -> None:
        self.frequencies = rotary.inv_freq.double().cpu()
        self.scaling = float(rotary.attention_scaling)
        self.pairing = ""
        self.tokens = [0] * model.layers
        shape = (3, model.layers, model.query_heads, model.head_dim // 2)
        self.total = torch.zeros(shape, dtype=torch.float64, device=device)
        self._rotary = rotary

    def add(self, layer: int, before: torch.Tensor, after: torch.Tensor) -> None:
        """As Seen. Raises CalibrationError when the first rotation is not understood."""
        if not self.pairing:
            self.pairing = find_pairing(before[0], after[0], self.frequencies, self.scaling)
        dims = band_dims(before.shape[-1], 2 * len(self.frequencies), self.pairing)
        real, imag = (before[0][..., part].double() for part in dims)
        self.total[:, layer] += torch.stack((real, imag, torch.hypot(real, imag))).sum(2)
        self.tokens[layer] += before.shape[2]

    def changed(self) -> bool:
        """Whether the embedding has other frequencies by now, as some have for longer texts."""
        return not torch.equal(self._rotary.inv_freq.double().cpu(), self.frequencies)


@torch.inference_mode()
def calibrate(
    directory: Path,
    model: ModelFacts,
    texts: Iterable[Sequence[int]],
    corpus: str,
    device: str = "cpu",
) -> Calibration:
    """Statistics over all tokens of the texts, each a sequence of token ids read from position 0.

    Every token counts the same. Raises CalibrationError: no tokens, an attention that hands its queries over in another
    way, or a rotary embedding that is not one fixed rotation of pairs.
    """
    network = AutoModel.from_pretrained(
        directory, dtype=torch.float32 if device == "cpu" else "auto", attn_implementation="sdpa"
    )
    network = network.to(device).eval()
    sums = _Sums(model, _rotary(network), device)
    with watched(network, sums.add):
        for text in texts:
            network(input_ids=torch.tensor([list(text)], device=device), use_cache=False)
            if sums.changed():
                raise CalibrationError(
                    f"its rotary frequencies change with the length of a text ({len(text)} tokens); give shorter texts "
                    "(--length)."
                )
    if not all(sums.tokens):
        missing = [layer for layer, tokens in enumerate(sums.tokens) if not tokens]
        raise CalibrationError(f"no queries seen in layers {missing}; give texts with tokens.")
    bands = np.zeros(model.head_dim // 2)
    bands[: len(sums.frequencies)] = sums.frequencies.numpy()
    meta = Meta(
        model=model.revision,
        rope=model.rope,
        attention_scaling=sums.scaling,
        pairing=sums.pairing,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        rotary_dim=2 * len(sums.frequencies),
        tokens=sums.tokens[0],
        corpus=corpus,
    )
    real, imag, length = (sums.total / sums.tokens[0]).float().cpu().numpy()
    return Calibration(real, imag, length, bands, meta)


@contextmanager
def watched(network: torch.nn.Module, seen: Seen) -> Iterator[None]:
    """Calls seen() at every rotation of queries inside. Raises CalibrationError for a model that has none to watch."""
    attentions = [part for part in network.modules() if hasattr(part, "layer_idx") and hasattr(part, "o_proj")]
    modules = {type(part).__module__: sys.modules[type(part).__module__] for part in attentions}
    if not attentions or not all(hasattr(module, _ROTATE) for module in modules.values()):
        raise CalibrationError(
            f"{type(network).__name__}: no attention of this model calls {_ROTATE}; only models with standard "
            "rotary attention can be calibrated."
        )
    layer = -1

    def enter(part: Any, *_: Any) -> None:
        nonlocal layer
        layer = part.layer_idx

    def watching(original: Callable[..., Any]) -> Callable[..., Any]:
        def rotate(q: torch.Tensor, k: torch.Tensor, *rest: Any, **options: Any) -> Any:
            rotated = original(q, k, *rest, **options)
            seen(layer, q, rotated[0])
            return rotated

        return rotate

    originals = {name: getattr(module, _ROTATE) for name, module in modules.items()}
    hooks = [part.register_forward_pre_hook(enter) for part in attentions]
    try:
        for name, module in modules.items():
            setattr(module, _ROTATE, watching(originals[name]))
        yield
    finally:
        for name, module in modules.items():
            setattr(module, _ROTATE, originals[name])
        for hook in hooks:
            hook.remove()


def find_pairing(before: torch.Tensor, after: torch.Tensor, frequencies: torch.Tensor, scaling: float) -> str:
    """Which dimensions rotate together, by trying: queries [H_q, T, D] at positions 0..T-1, before and after.

    Raises CalibrationError when no pairing with these frequencies and this scaling gives what the model computed.
    """
    for pairing in PAIRINGS:
        turned = rotate(before, frequencies, scaling, pairing)
        scale = after.abs().max().clamp_min(1e-6)
        if (turned - after.float()).abs().max() <= _TOLERANCE * scale * (1 if after.dtype == torch.float32 else 30):
            return pairing
    raise CalibrationError(
        "this model's rotary embedding is no fixed rotation of pairs of dimensions (neither half nor interleaved); "
        "TriAttention's statistics do not apply to it."
    )


def rotate(queries: torch.Tensor, frequencies: torch.Tensor, scaling: float, pairing: str) -> torch.Tensor:
    """Queries [H_q, T, D] turned to positions 0..T-1 by the definition, fp32; frequencies [R/2] radians per token."""
    real, imag = band_dims(queries.shape[-1], 2 * len(frequencies), pairing)
    real, imag = real[: len(frequencies)], imag[: len(frequencies)]
    angle = torch.arange(queries.shape[1], dtype=torch.float64)[:, None] * frequencies
    cos, sin = (scaling * part.float().to(queries.device) for part in (angle.cos(), angle.sin()))
    turned = queries.float().clone()
    x, y = turned[..., real].clone(), turned[..., imag].clone()
    turned[..., real], turned[..., imag] = x * cos - y * sin, x * sin + y * cos
    return turned


def _rotary(network: torch.nn.Module) -> Any:
    found = [part for part in network.modules() if hasattr(part, "inv_freq") and hasattr(part, "attention_scaling")]
    if len(found) != 1:
        raise CalibrationError(
            f"it has {len(found)} rotary embeddings; only models whose layers share one can be used."
        )
    return found[0]
