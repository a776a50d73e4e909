"""Training batches as pure functions of (recipe, step): an interrupted run sees what an uninterrupted one would."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from infra.reasoner.model import IGNORED
from infra.reasoner.recipe import Layout, Recipe
from infra.reasoner.vocabulary import PAD, answer_ids, encode, prompt_ids
from orchestrator.tasks.reasoner import RECAPS, Numbers, Program, Walk

# Keeps and intervals (tokens) of the eviction masks; short intervals are the hard ones, so 16 counts twice.
KEEPS = (96, 128, 160, 192, 256, 320, 384, 512)
INTERVALS = (16, 16, 32, 64)
MIN_FREE = 48  # tokens of a keep beyond the prompt


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens, positions, targets int64 [B, L]; death int64 [layers, H_kv, L] or None (see Reasoner.forward)."""

    tokens: torch.Tensor
    positions: torch.Tensor
    targets: torch.Tensor
    death: torch.Tensor | None
    whole: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Token ids of which those from `learned` on are in the loss."""

    ids: list[int]
    learned: int = 0


def batch(recipe: Recipe, step: int) -> Batch:
    """The batch of a step of the run."""
    numbers = Numbers(f"reasoner-training/{recipe.seed}/{step}")
    index, local = recipe.stage_of(step)
    stage = recipe.stages[index]
    whole = local >= stage.segments_only and _chance(numbers, stage.whole)
    masked = _chance(numbers, stage.masked)
    layout = recipe.whole if whole else recipe.segments
    # One family a batch: its prompts are equally long, so that one eviction mask fits every row.
    family = Walk if numbers.between(0, 1) else Program
    rows = [_row(recipe, layout, family, numbers, whole) for _ in range(layout.rows)]
    tokens, positions, targets = (torch.tensor(column) for column in zip(*(row[:3] for row in rows), strict=True))
    death = _death(recipe, step, rows[0][3], layout.length) if masked else None
    return Batch(tokens, positions, targets, death, whole)


def _row(
    recipe: Recipe, layout: Layout, family: type[Walk] | type[Program], numbers: Numbers, whole: bool
) -> tuple[list[int], list[int], list[int], int]:
    """(tokens, positions, targets) of layout.length each, and the length of the prompt."""
    steps = layout.walk_steps if family is Walk else layout.program_steps
    item = family.draw(numbers, steps, RECAPS[numbers.between(0, 1)])
    thought, answer = item.solve()
    lines = [Piece(encode(line)) for line in thought.splitlines(keepends=True)]
    start = 0 if whole else _recap(thought, numbers)
    if start:  # nothing shown tells what the first restatement says
        lines[start] = Piece(lines[start].ids, len(lines[start].ids))
    if _chance(numbers, recipe.needles):
        _hide_passcode(lines, start, numbers)
    prompt = prompt_ids(item.prompt)
    skipped = sum(len(line.ids) for line in lines[:start])
    pieces = [Piece(prompt, len(prompt)), *lines[start:], Piece(answer_ids(answer))]
    tokens = list(itertools.chain.from_iterable(piece.ids for piece in pieces))[: layout.length + 1]
    learned = [i >= piece.learned for piece in pieces for i in range(len(piece.ids))][: layout.length + 1]
    targets = [token if use else IGNORED for token, use in zip(tokens[1:], learned[1:], strict=True)]
    positions = [i if i < len(prompt) else i + skipped for i in range(layout.length)]
    tokens = tokens[: layout.length]
    tokens += [PAD] * (layout.length - len(tokens))
    targets += [IGNORED] * (layout.length - len(targets))
    return tokens, positions, targets, len(prompt)


def _recap(thought: str, numbers: Numbers) -> int:
    """Index of a line that restates the state: the segment starts there, at its true position."""
    found = [index for index, line in enumerate(thought.splitlines()) if line.startswith("R")]
    return found[numbers.between(0, max(0, len(found) - 2))]


def _hide_passcode(lines: list[Piece], start: int, numbers: Numbers) -> None:
    """Insert `@dddd` after line `start` and the question `?@dddd` later, half of the time after the last line."""
    code = encode(f"@{numbers.between(0, 9999):04d}\n")
    place = numbers.between(start + 1, len(lines))
    lines.insert(place, Piece(code, len(code)))
    last = len(lines)
    asked = last if numbers.between(0, 1) else numbers.between(place + 1, last)
    lines.insert(asked, Piece([*encode("?"), *code], 1))


def _death(recipe: Recipe, step: int, prompt: int, length: int) -> torch.Tensor:
    """Index at which each key dies, per layer and KV head: the law of prompt-protected random eviction.

    A key meets its first event at the first count of cached tokens keep + interval after it was written, and survives
    every event with chance (keep - prompt) / (keep - prompt + interval).
    """
    rng = np.random.default_rng([recipe.seed, step])
    keep = int(rng.choice([each for each in KEEPS if each >= prompt + MIN_FREE]))
    interval = int(rng.choice(INTERVALS))
    key = np.arange(length)
    first = np.where(key < keep + interval, keep + interval, keep + interval * ((key - keep) // interval + 1))
    free = keep - prompt
    survived = rng.geometric(interval / (free + interval), (recipe.sizes.layers, recipe.sizes.kv_heads, length)) - 1
    death = first + interval * survived
    death[..., :prompt] = length
    return torch.from_numpy(np.minimum(death, length))


def _chance(numbers: Numbers, probability: float) -> bool:
    return numbers.between(0, 999_999) < probability * 1_000_000
