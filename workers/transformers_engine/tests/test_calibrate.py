"""Calibration: what is captured is the input of the rotary embedding, computed here a second time from the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, LlamaConfig, Phi3Config

from policies.calibration import CalibrationError, ModelFacts, band_dims
from workers.transformers_engine.calibrate import calibrate, find_pairing, rotate, watched

SIZES: dict[str, Any] = {
    "vocab_size": 49, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
REASONER = Path(__file__).parents[3] / "jobs" / "models" / "reasoner"
TEXTS = [list(range(3, 45)), list(range(40, 9, -1))]


def checkpoint(name: str, folder: Path) -> Path:
    """The trained Qwen3 reasoner, or a random model of another architecture written to `folder`."""
    if name == "qwen3":
        return REASONER
    config = {
        "llama": LlamaConfig(**SIZES),
        "llama_yarn": LlamaConfig(**SIZES, rope_parameters=YARN),
        "phi3_partial": Phi3Config(**SIZES, partial_rotary_factor=0.5),
    }[name]
    torch.manual_seed(5)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


@torch.inference_mode()
def queries_by_hand(network: Any, layer: int, hidden: torch.Tensor) -> torch.Tensor:
    """Pre-rotary queries [H_q, T, D] from the weights: fused projection of Phi-3, norm per head of Qwen3."""
    attention, config = network.layers[layer].self_attn, network.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rows = config.num_attention_heads * size
    weight = attention.qkv_proj.weight[:rows] if hasattr(attention, "qkv_proj") else attention.q_proj.weight
    queries = (hidden @ weight.T).unflatten(-1, (config.num_attention_heads, size)).transpose(0, 1)
    if hasattr(attention, "q_norm"):
        root = (queries.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()
        queries = queries / root * attention.q_norm.weight
    return queries


@pytest.mark.parametrize("name", ["qwen3", "llama", "llama_yarn", "phi3_partial"])
def test_captured_is_the_input_of_the_rotary_embedding(name: str, tmp_path: Path) -> None:
    network = AutoModel.from_pretrained(checkpoint(name, tmp_path), dtype=torch.float32).eval()
    hidden: dict[int, torch.Tensor] = {}
    for index, block in enumerate(network.layers):
        block.input_layernorm.register_forward_hook(lambda _m, _i, out, index=index: hidden.update({index: out[0]}))
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    with torch.inference_mode(), watched(network, lambda layer, q, after: seen.update({layer: (q[0], after[0])})):
        network(input_ids=torch.tensor([TEXTS[0]]))
    assert sorted(seen) == list(range(len(network.layers)))
    frequencies, scaling = network.rotary_emb.inv_freq.double(), network.rotary_emb.attention_scaling
    for layer, (before, after) in seen.items():
        torch.testing.assert_close(before, queries_by_hand(network, layer, hidden[layer]), atol=1e-4, rtol=1e-4)
        assert find_pairing(before, after, frequencies, scaling) == "half"
        torch.testing.assert_close(rotate(before, frequencies, scaling, "half"), after, atol=1e-4, rtol=1e-4)
        # Where only rotated queries are at hand: turning them back with their positions gives the same statistics.
        back = rotate(after, -frequencies, 1 / scaling, "half")
        torch.testing.assert_close(back, before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "phi3_partial"])
def test_statistics_are_means_over_all_tokens(name: str, tmp_path: Path) -> None:
    directory = checkpoint(name, tmp_path)
    made = calibrate(directory, ModelFacts.read(directory, "r"), TEXTS, "blake2b:0")
    network = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    collected: list[torch.Tensor] = []
    with torch.inference_mode():
        for text in TEXTS:
            with watched(network, lambda layer, q, _: collected.append(q[0]) if layer == 1 else None):
                network(input_ids=torch.tensor([text]))
    queries = torch.cat(collected, dim=1)[2].double()
    real, imag = band_dims(made.meta.head_dim, made.meta.rotary_dim, "half")
    band = torch.complex(queries[:, real], queries[:, imag])
    assert made.meta.tokens == sum(map(len, TEXTS)) == len(band)
    np.testing.assert_allclose(made.center_real[1, 2], band.mean(0).real, atol=1e-6)
    np.testing.assert_allclose(made.center_imag[1, 2], band.mean(0).imag, atol=1e-6)
    np.testing.assert_allclose(made.abs_mean[1, 2], band.abs().mean(0), atol=1e-6)
    assert (made.resultant <= 1 + 1e-6).all()


def test_partial_rotary_has_bands_that_do_not_turn(tmp_path: Path) -> None:
    directory = checkpoint("phi3_partial", tmp_path)
    made = calibrate(directory, ModelFacts.read(directory, "r"), TEXTS, "blake2b:0")
    assert (made.meta.head_dim, made.meta.rotary_dim) == (16, 8)
    np.testing.assert_allclose(made.frequencies, [1, 0.1, 0.01, 0.001, 0, 0, 0, 0], rtol=1e-6)


def test_yarn_scales_what_turns_and_queries_stay_unscaled(tmp_path: Path) -> None:
    directory = checkpoint("llama_yarn", tmp_path)
    made = calibrate(directory, ModelFacts.read(directory, "r"), TEXTS, "blake2b:0")
    assert made.meta.attention_scaling == pytest.approx(0.1 * np.log(4) + 1)
    assert json.loads(made.meta.rope)["factor"] == 4.0


def test_rotations_that_are_none_are_refused() -> None:
    before = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    frequencies = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
    assert find_pairing(before, rotate(before, frequencies, 1.0, "interleaved"), frequencies, 1.0) == "interleaved"
    with pytest.raises(CalibrationError, match="no fixed rotation of pairs"):
        find_pairing(before, before.flip(-1), frequencies, 1.0)
    with pytest.raises(CalibrationError, match="no fixed rotation"):
        find_pairing(before, rotate(before, frequencies, 1.2, "half"), frequencies, 1.0)


def test_model_without_rotary_attention_is_refused(tmp_path: Path) -> None:
    network = AutoModel.from_config(AutoConfig.for_model("gpt2", n_layer=1, n_head=2, n_embd=8, vocab_size=9))
    with pytest.raises(CalibrationError, match="only models with standard rotary attention"), watched(network, print):
        pass
