"""The probe engine against the dense reference, and what pins and bans do to the cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from policies.budget import Protection, survival
from workers.api import Eviction
from workers.transformers_engine.dense import DenseReference
from workers.transformers_engine.probe import ProbeEngine
from workers.transformers_engine.probe_batch import Script

INTERVAL, KEEP, LENGTH = 16, 80, 115
MODEL = Path(__file__).parents[3] / "jobs" / "models" / "reasoner"
QUESTIONS = ("Wx57n31R8A58B48C74D35E44F69G97H06I58J86", "Wx08n29R8A31B02C77D90E15F64G43H21I56J39")


@pytest.fixture(scope="module")
def engine() -> ProbeEngine:
    return ProbeEngine(str(MODEL), revision="")


@pytest.fixture(scope="module")
def dense(engine: ProbeEngine) -> DenseReference:
    return DenseReference(str(MODEL))


@pytest.fixture(scope="module")
def answered(engine: ProbeEngine) -> tuple[int, ...]:
    """A prompt and 100 tokens of its answer."""
    (prompt,) = prompts(1)
    return (*prompt, *engine.generate([prompt], 100)[0])


def prompts(count: int) -> list[tuple[int, ...]]:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    texts = (f"<|user|>{question}<|end|><|assistant|><think>" for question in QUESTIONS[:count])
    return [tuple(tokenizer.encode(text).ids) for text in texts]


def rule(policy: str, protection: Protection = Protection.PROMPT, seed: int = 0) -> Eviction:
    return Eviction(policy, {}, KEEP, INTERVAL, protection, 4, seed)


@pytest.mark.parametrize("policy", ["random", "recent"])
def test_forced_tokens_of_the_dense_reference_are_greedy_here_too(
    engine: ProbeEngine, dense: DenseReference, policy: str
) -> None:
    seeds = (5, 2**63 + 7)
    scripts = []
    for prompt, seed in zip(prompts(2), seeds, strict=True):
        made = dense.generate(prompt, rule(policy, seed=seed), INTERVAL, LENGTH, ignore_end=True)
        assert made.events >= 4
        tokens = (*prompt, *made.token_ids)
        scripts.append(Script(tokens, len(prompt), ((len(prompt), len(tokens)),), seed))
    for script, reading in zip(scripts, engine.read(scripts, rule(policy), INTERVAL), strict=True):
        assert all(reading.hits[0])
        assert reading.free == script.tokens[script.prompt :]
        # greedy tokens are the most probable ones
        assert min(np.exp(reading.logprobs[0])) > 1 / 49


def test_without_eviction_the_log_probabilities_are_those_of_one_forward(engine: ProbeEngine) -> None:
    (prompt,) = prompts(1)
    (made,) = engine.generate([prompt], 60)
    tokens = (*prompt, *made)
    read = (len(prompt) + 20, len(tokens))
    (reading,) = engine.read([Script(tokens, len(prompt), (read,), 0)], None, INTERVAL)
    (whole,) = engine.read([Script(tokens, len(tokens) - 1, ((len(tokens) - 1, len(tokens)),), 0)], None, INTERVAL)
    assert all(reading.hits[0])
    assert engine.follows(prompt, made)
    assert not engine.follows(prompt, (*made[:30], made[31], *made[31:]))
    assert reading.logprobs[0][-1] == pytest.approx(whole.logprobs[0][0], abs=1e-4)


def test_pins_stay_and_bans_go_head_by_head(engine: ProbeEngine) -> None:
    (prompt,) = prompts(1)
    length = len(prompt) + 200
    fact = tuple(range(len(prompt) + 8, len(prompt) + 14))
    pinned = np.zeros((engine.layers, engine.heads, length), bool)
    pinned[:, 2, list(fact)] = True
    banned = np.zeros_like(pinned)
    banned[:, [0, 1, 3], fact[0] : fact[-1] + 1] = True
    tokens = (*prompt, *([20] * (length - len(prompt))))
    script = Script(tokens, len(prompt), ((length - 2, length),), 9, pinned, banned, fact)
    (reading,) = engine.read([script], rule("random", Protection.NONE), INTERVAL)
    assert reading.alive.shape == (
        (length - 1 - KEEP - INTERVAL) // INTERVAL + 1,
        engine.layers,
        engine.heads,
        len(fact),
    )
    assert reading.alive[:, :, 2].all()
    assert not reading.alive[:, :, [0, 1, 3]].any()
    (free,) = engine.read([replace(script, pinned=None, banned=None)], rule("random", Protection.NONE), INTERVAL)
    assert 0 < free.alive[0].mean() < 1


def test_survival_of_free_tokens_is_what_theory_says(engine: ProbeEngine) -> None:
    (prompt,) = prompts(1)
    length = len(prompt) + 120
    watched = tuple(range(len(prompt), len(prompt) + 20))
    tokens = (*prompt, *([20] * 120))
    scripts = [Script(tokens, len(prompt), ((length - 1, length),), seed, watched=watched) for seed in range(16)]
    alive = np.stack([reading.alive for reading in engine.read(scripts, rule("random"), INTERVAL)])
    chance = survival(KEEP, len(prompt), INTERVAL)
    for event in range(alive.shape[1]):
        expected = chance ** (event + 1)
        share = alive[:, event].mean()
        # 16 scripts x 16 (layer, head) sets, 20 tokens of a set share a draw: bounded by the sets alone
        assert abs(share - expected) < 4 * (expected * (1 - expected) / 256) ** 0.5


@pytest.mark.parametrize("policy", ["h2o", "snapkv", "lazy_eviction", "triattention"])
def test_scored_policies_keep_their_budget(engine: ProbeEngine, answered: tuple[int, ...], policy: str) -> None:
    (prompt,), end = prompts(1), len(answered)
    script = Script(answered, len(prompt), ((end - 1, end),), 1, watched=tuple(range(end)))
    (reading,) = engine.read([script], rule(policy), INTERVAL)
    assert len(reading.alive) == 3
    assert (reading.alive.sum(-1) == KEEP).all()
    assert reading.alive[..., : len(prompt)].all()


def test_what_cannot_run_is_refused(engine: ProbeEngine) -> None:
    (prompt,) = prompts(1)
    script = Script((*prompt, 1, 2), len(prompt), ((len(prompt), len(prompt) + 2),), 0)
    with pytest.raises(ValueError, match="random_inplace"):
        engine.read([script], rule("random_inplace"), INTERVAL)
    with pytest.raises(ValueError, match="equal lengths"):
        engine.read([script, replace(script, tokens=script.tokens[:-1])], None, INTERVAL)
