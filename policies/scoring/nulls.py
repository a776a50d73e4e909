"""Scores of the nulls that a scored policy must beat: its ages without its choice, its scores without their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from policies.draws import Draw

if TYPE_CHECKING:
    from policies.methods.matched_age import MatchedAge
    from policies.methods.permuted_scores import PermutedScores
    from policies.view import CacheView

# Layer and head number of draws that all layers and heads share; no model has so many.
_ALL = 0xFFFFFFFF
# Event number of a draw that stays the same from event to event.
_ALWAYS = 0xFFFFFFFF
_EDGE = 1e-6


def matched_age(policy: MatchedAge, view: CacheView) -> torch.Tensor:
    """Pareto sampling with inclusion chances S(a) / S(a - r): fp32 [L, H, S], higher is kept."""
    positions = view.need("positions")
    ages = (view.t - 1 - positions).clamp_min(0)
    table = _survival(policy.survival, view.t, positions.device)
    chance = table[ages] / table[(ages - policy.r).clamp_min(0)].clamp_min(_EDGE)
    chance = chance.clamp(_EDGE, 1 - _EDGE)
    # Drawn by token, not by slot: slots hold different tokens in different heads.
    own = _by_token(view.draw, view.t, positions)
    common = _by_token(_everywhere(view.draw, view.draw.event), view.t, positions)
    joint = _by_token(_everywhere(view.draw, _ALWAYS), view.t, positions) < policy.overlap
    u = torch.where(joint, common, own).clamp(_EDGE, 1 - _EDGE)
    return torch.logit(chance) - torch.logit(u)


def permuted(policy: PermutedScores, view: CacheView) -> torch.Tensor:
    """The inner scores [L, H or 1, N] among slots of one log2 bin of age, in a drawn order: [L, H, N]."""
    scores = policy.inner.score(view)
    count = scores.shape[-1]
    layers, heads, _ = view.shape
    scores = scores.expand(layers, heads, count)
    positions = view.need("positions")[..., :count]
    bins = _age_bin((view.t - 1 - positions).clamp_min(0))
    # Protected slots keep their scores, which nobody reads: a candidate must not get one.
    bins[..., : view.prot] = -1
    # Two orders of the slots, both bin by bin: by slot, and drawn. Slot k of the one takes the score of the other's k.
    by_slot = torch.sort(bins, dim=-1, stable=True).indices
    drawn = torch.argsort(view.draw.keys(count), dim=-1)
    drawn = drawn.gather(-1, torch.sort(bins.gather(-1, drawn), dim=-1, stable=True).indices)
    return torch.empty_like(scores).scatter(-1, by_slot, scores.gather(-1, drawn))


def _survival(shares: tuple[float, ...], length: int, device: torch.device) -> torch.Tensor:
    """S by age, fp32 [length]: log-linear between the bins' middles, never rising, 1 at age 0."""
    known = torch.tensor([1.0, *shares[1:]], device=device).clamp_min(_EDGE).cummin(0).values.log()
    ages = torch.arange(length, device=device, dtype=torch.float32)
    # The middle of bin b (ages 2^(b-1) to 2^b - 1) lies at b - 1/2 on the log2 scale.
    place = torch.where(ages < 1, 0.0, ages.clamp_min(1).log2() + 0.5).clamp_max(len(shares) - 1)
    low = place.floor().long().clamp_max(max(0, len(shares) - 2))
    high = (low + 1).clamp_max(len(shares) - 1)
    return (known[low] + (place - low) * (known[high] - known[low])).exp()


def _by_token(draw: Draw, length: int, positions: torch.Tensor) -> torch.Tensor:
    """Uniform numbers keyed by logical position: fp32 [L, H, S]."""
    u = draw.uniform(length)
    return u.expand(*positions.shape[:2], length).gather(-1, positions)


def _everywhere(draw: Draw, event: object) -> Draw:
    """Draws that all layers and heads share."""
    return Draw(draw.seed, event, (_ALL,), (_ALL,), device=draw.device)  # type: ignore[arg-type]


def _age_bin(ages: torch.Tensor) -> torch.Tensor:
    """0 for age 0, else floor(log2(age)) + 1, as policies.retention counts: int64."""
    return torch.frexp(ages.double())[1].long()
