"""What the engine's tests and the oracle table share: prompts, requests, small models, equality with the reference."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

from policies.base import Needs
from policies.budget import Protection
from policies.registry import build, get, names
from workers.api import EngineSpec, Eviction, Generation, Request, Sampling
from workers.engines import create
from workers.transformers_engine.dense import DenseResult
from workers.vllm_engine.engine import VllmEngine
from workers.vllm_engine.state import ALWAYS_GIVEN, level

MODEL = str(Path(__file__).parents[3] / "jobs" / "models" / "reasoner")
INTERVAL, TOKENS = 16, 150
SPEC = EngineSpec(
    kind="vllm",
    model=MODEL,
    revision="",
    dtype="float32",
    max_model_len=512,
    max_prompt_tokens=120,
    keep_ceiling=320,
    interval=INTERVAL,
    max_num_seqs=48,
)
# two problems of the reasoner's family W, as its chat template renders them; LONG has 60 tokens of reasoning as well
FIRST = (
    1, 35, 31, 16, 11, 32, 10, 8, 34, 15, 17, 12, 9, 18, 11, 7, 19, 13, 9, 20, 15, 16, 21, 13, 10, 22, 12, 15, 23, 7,
    9, 24, 8, 13, 25, 8, 15, 26, 10, 8, 2, 3, 4,
)  # fmt: skip
SECOND = (
    1, 35, 31, 8, 7, 32, 9, 15, 34, 15, 17, 7, 11, 18, 7, 11, 19, 9, 8, 20, 16, 16, 21, 14, 12, 22, 9, 7, 23, 7, 11,
    24, 14, 9, 25, 11, 11, 26, 8, 14, 2, 3, 4,
)  # fmt: skip
LONG = (
    *FIRST,
    34, 7, 7, 31, 16, 11, 33, 16, 11, 47, 7, 8, 43, 16, 11, 22, 12, 15, 37, 11, 40, 15, 41, 8, 9, 38, 16, 40, 12, 40, 8,
    41, 8, 12, 42, 12, 9, 33, 16, 11, 47, 7, 9, 43, 12, 9, 21, 13, 10, 37, 9, 40, 10, 41, 7, 12, 38, 12, 40, 13,
)  # fmt: skip
PROMPTS = SECOND, LONG[:60], LONG
"""43, 60 and 103 tokens; two share their first block of 32."""


def request(name: str, prompt: Sequence[int], eviction: Eviction | None, **sampling: Any) -> Request:
    """A greedy request of TOKENS tokens unless said otherwise."""
    return Request(name, tuple(prompt), Sampling(**({"temperature": 0.0, "max_tokens": TOKENS} | sampling)), eviction)


def eviction(policy: str, protection: Protection, keep: int = 112, **others: Any) -> Eviction:
    """Settings with default parameters and 4 sinks."""
    rest: dict[str, Any] = {"params": {}, "recent": INTERVAL, "n_sink": 4, "seed": 7} | others
    return Eviction(policy=policy, keep=keep, protection=protection, **rest)


def run(engine: VllmEngine, requests: Sequence[Request]) -> dict[str, Generation]:
    """All requests in one batch, until each has finished."""
    engine.submit(requests)
    done: dict[str, Generation] = {}
    while len(done) < len(requests):
        done.update({generation.request_id: generation for generation in engine.step()})
    return done


def start(spec: EngineSpec) -> VllmEngine:
    """A started engine."""
    engine = create(spec)
    assert isinstance(engine, VllmEngine)
    engine.start()
    return engine


def assert_equal(made: Generation, reference: DenseResult) -> None:
    """Tokens, events, kept sets and what is cached at the end."""
    assert made.trace is not None
    assert list(made.token_ids) == reference.token_ids
    assert (made.trace.events, made.trace.kept_crc) == (reference.events, reference.crc)
    assert reference.positions is not None
    assert sum(made.trace.age_histogram) == reference.positions.numel()
    assert made.trace.union_alive == reference.positions.unique().numel()


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy with parameters."""

    policy: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> Needs:
        """What it asks of an engine."""
        return build(self.policy, self.params).needs


def registered() -> dict[str, Arm]:
    """Every policy of the registry that evicts, by name, with its own defaults or its example."""
    return {name: Arm(name, get(name).example) for name in names() if get(name).evicts}


def needs_of(arms: Iterable[Arm]) -> tuple[tuple[str, Any], ...]:
    """EngineSpec.needs of an engine that serves all of these."""
    asked = [asdict(arm.needs) for arm in arms]
    merged = {
        name: max((needs[name] for needs in asked), key=level) for name in asdict(Needs()) if name not in ALWAYS_GIVEN
    }
    return tuple(sorted((name, value) for name, value in merged.items() if value))


def random_llama(path: Path, heads: int, kv_heads: int, head_dim: int) -> str:
    """A Llama with random weights and the reasoner's tokenizer, saved at path."""
    config = LlamaConfig(
        vocab_size=49, hidden_size=96, intermediate_size=128, num_hidden_layers=3, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, max_position_embeddings=1024, initializer_range=0.3,
        eos_token_id=2,
    )  # fmt: skip
    return _save(LlamaForCausalLM, config, path)


def random_phi3(path: Path, heads: int, kv_heads: int) -> str:
    """The same for Phi-3, whose query, key and value projections are one."""
    config = Phi3Config(
        vocab_size=49, hidden_size=32 * heads, intermediate_size=128, num_hidden_layers=3, num_attention_heads=heads,
        num_key_value_heads=kv_heads, max_position_embeddings=1024, original_max_position_embeddings=1024,
        initializer_range=0.2, eos_token_id=2, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    return _save(Phi3ForCausalLM, config, path)


def _save(kind: Any, config: Any, path: Path) -> str:
    torch.manual_seed(3)
    model = kind(config)
    with torch.no_grad():
        model.lm_head.weight[config.eos_token_id] = 0.0  # never the largest logit: outputs run to their limit
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(MODEL) / name, path)
    return str(path)
