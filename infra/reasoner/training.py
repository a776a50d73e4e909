"""The training run as a resumable object: one optimizer step at a time, its whole state in one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from infra.reasoner.corpus import Batch, batch
from infra.reasoner.model import Reasoner
from infra.reasoner.recipe import Recipe
from infra.reasoner.vocabulary import TOKENS

_SMOOTHING = 0.98  # of the losses shown, per step of their kind


@dataclass(slots=True)
class Progress:
    """step = optimizer steps done; losses = smoothed nats per kind of batch; seconds = time spent in steps so far."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, loss: float) -> None:
        """Add one step's loss."""
        old = self.losses.get(kind, loss)
        self.losses[kind] = _SMOOTHING * old + (1 - _SMOOTHING) * loss


class Run:
    """Training of one recipe, continued from `file` where that holds a state of the same recipe.

    Raises ValueError when `file` holds another recipe's state.
    """

    def __init__(self, recipe: Recipe, file: Path, *, compiled: bool = True) -> None:
        self.recipe, self._file = recipe, file
        self.model = Reasoner(recipe.sizes, len(TOKENS), recipe.seed)
        self.progress = Progress()
        self._optimizers = _optimizers(self.model, recipe)
        # Two shapes, each with and without a mask: four static graphs, about ten times the speed of eager steps.
        self._loss: Callable[..., torch.Tensor] = (
            torch.compile(self.model.loss, dynamic=False) if compiled else self.model.loss
        )
        if file.is_file():
            self._restore(torch.load(file, weights_only=True))

    @property
    def done(self) -> bool:
        """Whether every step of the recipe was taken."""
        return self.progress.step >= self.recipe.steps

    def step(self) -> float:
        """Take the next optimizer step; its loss in nats per token."""
        now = self.progress.step
        if self.recipe.stage_of(now)[1] == 0:
            self._optimizers = _optimizers(self.model, self.recipe)
        work = batch(self.recipe, now)
        for group in _groups(self._optimizers):
            group["lr"] = self.recipe.rate_at(now)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self._loss(work.tokens, work.positions, work.targets, work.death)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        value = float(loss.detach())
        self.progress.step += 1
        self.progress.tokens += work.tokens.numel()
        self.progress.note(_kind(work), value)
        return value

    def save(self) -> None:
        """Replace the state file in one rename: a kill leaves the old or the new state."""
        progress = self.progress
        state = {
            "recipe": self.recipe.fingerprint,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "progress": {name: getattr(progress, name) for name in Progress.__dataclass_fields__},
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".draft")
        torch.save(state, draft)
        draft.replace(self._file)

    def _restore(self, state: dict[str, Any]) -> None:
        if state["recipe"] != self.recipe.fingerprint:
            raise ValueError(
                f"{self._file} holds a run of another recipe ({state['recipe']}, this one is "
                f"{self.recipe.fingerprint}): give another --work directory, or remove the file to start over."
            )
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])


def _optimizers(model: Reasoner, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, AdamW for embedding and norms."""
    named = list(model.named_parameters())
    matrices = [value for name, value in named if value.dim() == 2 and "embed" not in name]
    others = [value for name, value in named if value.dim() == 1 or "embed" in name]
    muon = torch.optim.Muon(
        matrices, lr=recipe.rate, momentum=0.95, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
    )  # fmt: skip
    return [muon, torch.optim.AdamW(others, lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.0)]


def _groups(optimizers: list[torch.optim.Optimizer]) -> Iterator[dict[str, Any]]:
    for optimizer in optimizers:
        yield from optimizer.param_groups


def _kind(work: Batch) -> str:
    return ("whole" if work.whole else "segments") + ("+eviction" if work.death is not None else "")
