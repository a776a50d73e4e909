"""Every option that eviction cannot run beside is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.request import Request

from workers.vllm_engine.binding import attention_layers
from workers.vllm_engine.refusals import refuse_config, refuse_specs
from workers.vllm_engine.scheduler import settle
from workers.vllm_engine.settings import EngineSettings, SettingsError


def config() -> SimpleNamespace:
    """The fields of a plain VllmConfig that refusals read."""
    return SimpleNamespace(
        speculative_config=None,
        kv_transfer_config=None,
        kv_events_config=None,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_dbo=False,
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
        ),
        cache_config=SimpleNamespace(kv_offloading_size=None, cache_dtype="auto"),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=False),
        model_config=SimpleNamespace(
            runner_type="generate",
            is_encoder_decoder=False,
            use_mla=False,
            enable_prompt_embeds=False,
            get_total_num_kv_heads=lambda: 10,
        ),
    )


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("speculative_config", object(), "speculative decoding"),
        ("kv_transfer_config", object(), "KV connector"),
        ("kv_events_config", SimpleNamespace(enable_kv_cache_events=True), "KV events"),
        ("cache_config.kv_offloading_size", 4.0, "KV offloading"),
        ("cache_config.cache_dtype", "fp8", "'fp8'"),
        ("parallel_config.decode_context_parallel_size", 2, "decode context parallelism"),
        ("parallel_config.prefill_context_parallel_size", 2, "prefill context parallelism"),
        ("parallel_config.enable_dbo", True, "dual-batch overlap"),
        ("parallel_config.pipeline_parallel_size", 2, "pipeline parallelism"),
        ("parallel_config.tensor_parallel_size", 4, "does not divide 10 KV heads"),
        ("scheduler_config.enable_chunked_prefill", True, "chunked prefill"),
        ("model_config.runner_type", "pooling", "'pooling'"),
        ("model_config.is_encoder_decoder", True, "encoder-decoder"),
        ("model_config.use_mla", True, "latent attention"),
        ("model_config.enable_prompt_embeds", True, "embeddings"),
    ],
)
def test_each_conflict_is_named(path: str, value: Any, says: str) -> None:
    given = config()
    refuse_config(given)
    *parents, leaf = path.split(".")
    target: Any = given
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, leaf, value)
    with pytest.raises(SettingsError, match=says):
        refuse_config(given)


def test_layers_must_be_plain_full_attention_of_one_shape() -> None:
    shape: dict[str, Any] = {"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    plain = FullAttentionSpec(**shape)
    refuse_specs({"a": plain, "b": plain})
    with pytest.raises(SettingsError, match=r"1 of 2 are not, first 'b' \(SlidingWindowSpec\)"):
        refuse_specs({"a": plain, "b": SlidingWindowSpec(**shape, sliding_window=64)})
    with pytest.raises(SettingsError, match="without a window"):
        refuse_specs({"a": FullAttentionSpec(**shape, sliding_window=64)})
    for changed in ({"attention_chunk_size": 64}, {"non_causal": True}):
        with pytest.raises(SettingsError, match=r"layer 'b' has FullAttentionSpec"):
            refuse_specs({"a": plain, "b": FullAttentionSpec(**shape, **changed)})
    with pytest.raises(SettingsError, match="equal shape"):
        refuse_specs({"a": plain, "b": FullAttentionSpec(**(shape | {"num_kv_heads": 4}))})


def test_layers_that_read_another_layers_cache_are_named() -> None:
    layers = {f"model.layers.{i}.attn": SimpleNamespace(kv_sharing_target_layer_name=None) for i in range(3)}
    config: Any = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    groups = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=list(layers))])
    assert list(attention_layers(config, groups)) == [0, 1, 2]
    layers["model.layers.2.attn"].kv_sharing_target_layer_name = "model.layers.0.attn"
    with pytest.raises(SettingsError, match=r"1 read another's, first 'model\.layers\.2\.attn'"):
        attention_layers(config, groups)


def test_a_session_whose_prompt_grows_is_refused() -> None:
    params = SamplingParams(max_tokens=8)
    session = Request("s", [1, 2, 3], params, pooling_params=None, resumable=True)
    with pytest.raises(SettingsError, match="send whole prompts"):
        settle(session, EngineSettings(64, 16, 100))
    settle(Request("s", [1, 2, 3], params, pooling_params=None), EngineSettings(64, 16, 100))
