"""The trainer learns, goes on exactly where it stopped, and exports what the packaged reasoner is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from infra.reasoner.corpus import batch
from infra.reasoner.export import export
from infra.reasoner.model import IGNORED, Reasoner
from infra.reasoner.recipe import Layout, Recipe, Sizes, Stage
from infra.reasoner.training import Run
from infra.reasoner.vocabulary import TOKENS, prompt_ids
from orchestrator.models import resolve
from orchestrator.prompts import Renderer
from orchestrator.tasks.registry import get

TINY = Recipe(
    seed=3,
    sizes=Sizes(hidden=32, intermediate=64, layers=2, query_heads=2, kv_heads=1, head_size=16, positions=512),
    segments=Layout(4, 128, (4, 8), (4, 8)),
    whole=Layout(2, 192, (2, 4), (2, 3)),
    stages=(Stage(30, 0, 10, 0.5, 0.0), Stage(30, 10, 0, 0.5, 0.5)),
    warm_up=5,
)


def run_to(recipe: Recipe, file: Path, step: int) -> tuple[Run, list[float]]:
    """A run from its file up to `step`, and the losses of the steps taken."""
    run, losses = Run(recipe, file, compiled=False), []
    while run.progress.step < step:
        losses.append(run.step())
    run.save()
    return run, losses


def test_loss_falls_and_an_interrupted_run_is_the_same_run(tmp_path: Path) -> None:
    whole, losses = run_to(TINY, tmp_path / "whole.pt", TINY.steps)
    assert mean(losses[-10:]) < 0.7 * mean(losses[:5])
    # 23: inside the first stage; 30: before the fresh optimizer of the second; 41: after it.
    for stop in (23, 30, 41):
        run_to(TINY, tmp_path / "parts.pt", stop)
    parts, rest = run_to(TINY, tmp_path / "parts.pt", TINY.steps)
    assert rest == losses[41:]
    assert parts.progress.tokens == whole.progress.tokens
    assert all(torch.equal(parts.model.state_dict()[k], v) for k, v in whole.model.state_dict().items())


def test_a_state_of_another_recipe_is_refused(tmp_path: Path) -> None:
    run_to(TINY, tmp_path / "state.pt", 1)
    with pytest.raises(ValueError, match="another recipe"):
        Run(replace(TINY, seed=4), tmp_path / "state.pt", compiled=False)


def test_masks_follow_the_law_of_protected_random_eviction() -> None:
    recipe = replace(Recipe(), stages=(Stage(40, 0, 0, 1.0, 1.0),))
    for step in range(40):
        work = batch(recipe, step)
        assert work.death is not None
        prompt = int(work.tokens[0].tolist().index(TOKENS.index("<think>"))) + 1
        index = torch.arange(work.tokens.shape[1])
        assert (work.death[..., :prompt] == len(index)).all()
        assert (work.death > index).all()
        # Deaths fall on common event times of all layers and heads, and each has its own draw.
        assert not torch.equal(work.death[0, 0], work.death[1, 1])
        times = work.death[work.death < len(index)].unique()
        steps = times.diff().unique()
        assert len(times) > 1
        assert all(int(each) % 16 == 0 for each in steps)


def test_only_what_can_be_known_is_learned() -> None:
    for step in range(30):
        work = batch(Recipe(), step)
        for tokens, targets in zip(work.tokens.tolist(), work.targets.tolist(), strict=True):
            text = [TOKENS[token] for token in tokens]
            learned = [TOKENS[target] if target != IGNORED else "" for target in targets]
            think = text.index("<think>")
            assert not any(learned[:think])
            assert all(a == b for a, b in zip(text[1:], learned, strict=False) if b)
            # The passcode is learned behind its question and nowhere else.
            for place in (i for i, mark in enumerate(text) if mark == "@"):
                asked = text[place - 1] == "?"
                following = learned[place : place + 4]
                assert all(bool(mark) == asked for mark in following if place + 5 < len(text))


def test_the_export_is_what_the_packaged_reasoner_is(tmp_path: Path) -> None:
    model = Reasoner(Sizes(), len(TOKENS), seed=0)
    export(model.state_dict(), Sizes(), tmp_path, {"steps": 0})
    ours, packaged = AutoTokenizer.from_pretrained(tmp_path), resolve("embedded:reasoner")
    theirs = AutoTokenizer.from_pretrained(packaged.path_on_disk)
    problem = get("reasoner_p").problems(1)[0]
    rendered = Renderer(packaged).render(problem.messages)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours(rendered.text).input_ids == list(rendered.token_ids) == prompt_ids(problem.messages[0]["content"])
    exported = resolve(str(tmp_path))
    assert (exported.architecture, exported.head_size, exported.n_kv_heads) == ("Qwen3ForCausalLM", 32, 4)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    model.load_state_dict({name: value.bfloat16().float() for name, value in model.state_dict().items()})
    work = batch(Recipe(), 0)
    with torch.inference_mode():
        mine = model(work.tokens[:1], work.positions[:1])
        hers = reference(input_ids=work.tokens[:1], position_ids=work.positions[:1]).logits
    torch.testing.assert_close(mine, hers, atol=2e-5, rtol=0)
