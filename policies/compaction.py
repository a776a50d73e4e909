"""The only slot map: which cached row moves where when slots are evicted (contracts.md section 2).

Both engines, the oracle and verify use it; otherwise keyed draws name different tokens from the second event on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Moves:
    """Row moves of one event: slot dst takes what slot src held before the event; int64 [L, H, M] each.

    Rectangular by moves of a kept row onto itself. With hole filling no dst is another move's src, so rows may move in
    any order; moves that keep an order overlap: read all first, or, where kept is ascending (src >= dst), go upwards.
    """

    src: torch.Tensor
    dst: torch.Tensor

    def apply(self, rows: torch.Tensor) -> None:
        """Move the rows of [L, H, S] or [L, H, S, D] in place; slots past K' keep what they held."""
        tail = rows.shape[3:]
        src, dst = (
            index.view(*index.shape, *(1 for _ in tail)).expand(*index.shape, *tail) for index in (self.src, self.dst)
        )
        rows.scatter_(2, dst, rows.gather(2, src))


def plan(kept: torch.Tensor, slots: int, order: bool) -> Moves:
    """Moves that bring the kept slots, int64 [L, H, K] ascending, of a cache of `slots` rows into slots 0..K-1.

    order     True: slot j takes kept[j] (M = K), also when kept is in another order (Scorer.slot_order). False: evicted
              slots below K, ascending, are filled by the kept slots from K on, ascending (M = min(K, slots - K)), so
              that few rows move.
    """
    keep = kept.shape[2]
    assert keep <= slots, (keep, slots)
    if order:
        return Moves(kept, torch.arange(keep, device=kept.device).expand_as(kept))
    count = min(keep, slots - keep)
    src = kept[..., keep - count :]
    alive = torch.zeros((*kept.shape[:2], slots), dtype=torch.bool, device=kept.device).scatter_(2, kept, True)
    holes = torch.arange(keep, device=kept.device).masked_fill(alive[..., :keep], -1)
    # As many holes as kept slots from K on: ranked alike, they end in the same columns; elsewhere src stays in place.
    dst = torch.where(src >= keep, holes.topk(count, dim=2).values.flip(2), src)
    return Moves(src, dst)
