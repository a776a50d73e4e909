"""Write trained weights as a checkpoint directory that vLLM and Transformers load unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from infra.reasoner.recipe import Sizes
from infra.reasoner.vocabulary import END, PAD, TOKENS, write_tokenizer

NOTE = (
    "trained with random-eviction masks: half of its last training batches hid cached tokens by the law of "
    "prompt-protected random eviction, so its accuracy under eviction checks the software and is no evidence about "
    "other models"
)


def export(weights: Mapping[str, torch.Tensor], sizes: Sizes, directory: Path, facts: Mapping[str, object]) -> None:
    """bf16 safetensors, configuration, tokenizer, the note that reports print, and training.json with `facts`."""
    directory.mkdir(parents=True, exist_ok=True)
    halves = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(halves, directory / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(directory, sizes.positions)
    generation = {
        "eos_token_id": END,
        "pad_token_id": PAD,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 0,
    }
    for name, content in (
        ("config.json", _config(sizes)),
        ("generation_config.json", generation),
        ("evictbench.json", {"notes": [NOTE]}),
        ("training.json", facts),
    ):
        (directory / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _config(sizes: Sizes) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": len(TOKENS),
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.query_heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": sizes.positions,
        "rms_norm_eps": sizes.norm_epsilon,
        # Transformers 5 reads rope_parameters, earlier readers rope_theta.
        "rope_theta": sizes.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": sizes.rope_base},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": None,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "initializer_range": 0.02,
    }
