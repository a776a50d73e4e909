"""Sampling: what the job says, then the protocol, the card, the generation config; capped by prompt where it may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator import models
from orchestrator.cells import SamplingRef
from orchestrator.errors import UserError
from orchestrator.grid import expand
from orchestrator.model_cards import card, settle, system_note
from orchestrator.spec import JobSpec
from orchestrator.spec_sections import SamplingSpec
from orchestrator.tests.machines import Machine

NOTHING = SamplingSpec()


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("Qwen/Qwen3-4B", "Qwen3, thinking mode"),
        ("/models/Qwen3-32B-FP8", "Qwen3, thinking mode"),
        ("Qwen/Qwen3-4B-Base", None),
        ("microsoft/Phi-4-reasoning-plus", "Phi-4-reasoning"),
        ("microsoft/phi-4", None),
        ("embedded:smollm2", "SmolLM2, instruct"),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", "SmolLM2, instruct"),
        ("embedded:reasoner", "the embedded reasoner"),
    ],
)
def test_cards_know_models_by_name(path: str, title: str | None) -> None:
    found = card(path)
    assert (found.title if found else None) == title


def test_order_of_the_sources() -> None:
    model = replace(models.resolve("embedded:reasoner"), window=40_960, sampling={"temperature": 0.5, "top_k": 7})
    settled = settle(NOTHING, "Qwen/Qwen3-4B", model, None, "ours")
    assert settled.ref == SamplingRef(0.6, 0.95, 20, 0.0, 32_768)
    assert (settled.window, settled.fits) == (40_960, False)
    assert settled.sources == (
        "temperature 0.6, top_p 0.95, top_k 20, max_tokens 32768 by card of Qwen3, thinking mode"
    )
    mine = SamplingSpec(temperature=1.0, top_k=0, max_tokens=100)
    assert settle(mine, "Qwen/Qwen3-4B", model, 2048, "ours").ref == SamplingRef(1.0, 0.95, 0, 0.0, 100)
    published = settle(NOTHING, "Qwen/Qwen3-4B", model, None, "published")
    assert (published.ref, published.window) == (SamplingRef(0.6, 0.95, 0, 0.0, 32_768), 32_768)
    other = settle(SamplingSpec(max_tokens=100), "me/model", model, None, "ours")
    assert other.ref == SamplingRef(0.5, 1.0, 7, 0.0, 100)
    assert other.fits
    with pytest.raises(UserError, match=r"no max_tokens is known for model 'me/model'.*Write sampling.max_tokens"):
        settle(NOTHING, "me/model", model, None, "ours")


def test_a_missing_system_prompt_is_noted() -> None:
    note = system_note("microsoft/Phi-4-reasoning", "<|im_start|>user<|im_sep|>2+2?")
    assert note is not None
    assert "writes no system prompt" in note
    assert system_note("microsoft/Phi-4-reasoning", "<|im_start|>system<|im_sep|>You are Phi, a language model") is None
    assert system_note("Qwen/Qwen3-4B", "2+2?") is None


JOB = """
name: cards
models: [{{path: Qwen/Qwen3-4B, max_model_len: {window}}}]
tasks: [{{name: gpqa_diamond, mini: true, limit: 8}}]
arms: {{policies: [full]}}
protocol: {protocol}
"""


def test_a_silent_job_is_drawn_as_the_card_says_and_capped_by_the_prompt() -> None:
    plans = {
        protocol: expand(JobSpec.from_text(JOB.format(window=4000, protocol=protocol)), Machine(window=40_960))
        for protocol in ("ours", "published")
    }
    ours, published = (plan.cells[0] for plan in plans.values())
    assert ours.cell.sampling == SamplingRef(0.6, 0.95, 20, 0.0, 32_768)
    assert published.cell.sampling == SamplingRef(0.6, 0.95, 0, 0.0, 32_768)
    assert ours.cell_id != published.cell_id
    assert ours.samples_max == 4
    for plan in plans.values():
        row = plan.build(plan.missing(())[0], 0).rows[0]
        prompt = len(row.request.prompt_token_ids)
        assert row.request.sampling.max_tokens == 4000 - prompt
    assert any("by card of Qwen3" in note for note in plans["ours"].notes)
    golds = {
        protocol: {problem.gold for problem in plan.tasks[plan.cells[0].cell.task].problems()}
        for protocol, plan in plans.items()
    }
    assert golds["published"] == {"A"}
    assert len(golds["ours"]) > 1
