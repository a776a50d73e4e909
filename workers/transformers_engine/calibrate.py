"""Query statistics of a checkpoint, measured at the input of its rotary embedding (policies.md section 8.2).

That input is the query after q_norm where a model has one, and after a fused qkv projection was split. It is taken
where every architecture of Transformers hands it over: at the call of `apply_rotary_pos_emb` in the attention's module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Sums:
    """Running sums over tokens, fp64 [L, H_q, D/2]; made at the first query, when the sizes are known."""

    real: torch.Tensor
    imag: torch.Tensor
    length: torch.Tensor
    tokens: list[int] = field(default_factory=list)


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
    rotary = _rotary(network, directory)
    frequencies, scaling = rotary.inv_freq.double().cpu(), float(rotary.attention_scaling)
    half = torch.zeros(model.layers, model.query_heads, model.head_dim // 2, dtype=torch.float64, device=device)
    sums = _Sums(half, half.clone(), half.clone(), [0] * model.layers)
    dims: tuple[Any, ...] = ()
    pairing = ""

    def seen(layer: int, before: torch.Tensor, after: torch.Tensor) -> None:
        nonlocal dims, pairing
        if not pairing:
            pairing = find_pairing(before[0], after[0], frequencies, scaling)
            dims = band_dims(model.head_dim, 2 * len(frequencies), pairing)
        real, imag = before[0][..., dims[0]].double(), before[0][..., dims[1]].double()
        sums.real[layer] += real.sum(1)
        sums.imag[layer] += imag.sum(1)
        sums.length[layer] += torch.hypot(real, imag).sum(1)
        sums.tokens[layer] += before.shape[2]

    with watched(network, seen):
        for text in texts:
            network(input_ids=torch.tensor([list(text)], device=device), use_cache=False)
            if not torch.equal(rotary.inv_freq.double().cpu(), frequencies):
                raise CalibrationError(
                    f"model {directory}: its rotary frequencies change with the length of a text ({len(text)} tokens); "
                    "give shorter texts (--length)."
                )
    if not sums.tokens or min(sums.tokens) == 0:
        missing = [layer for layer, tokens in enumerate(sums.tokens) if not tokens]
        raise CalibrationError(f"model {directory}: no queries seen in layers {missing}; give texts with tokens.")
    bands = np.zeros(model.head_dim // 2)
    bands[: len(frequencies)] = frequencies.numpy()
    count = sums.tokens[0]
    center_real, center_imag, abs_mean = (
        (total / count).float().cpu().numpy() for total in (sums.real, sums.imag, sums.length)
    )
    meta = Meta(
        model=model.revision,
        rope=model.rope,
        attention_scaling=scaling,
        pairing=pairing,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        rotary_dim=2 * len(frequencies),
        tokens=count,
        corpus=corpus,
    )
    return Calibration(center_real, center_imag, abs_mean, bands, meta)


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


def _rotary(network: torch.nn.Module, directory: Path) -> Any:
    found = [part for part in network.modules() if hasattr(part, "inv_freq") and hasattr(part, "attention_scaling")]
    if len(found) != 1:
        raise CalibrationError(
            f"model {directory}: {len(found)} rotary embeddings; only models whose layers share one can be calibrated."
        )
    return found[0]
