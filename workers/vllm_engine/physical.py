"""Length algebra: where token n lives and when an event fires, as pure functions of n (contracts.md section 1).

Scheduler and worker each evaluate these and therefore never exchange lengths. Letters: K' = keep after overflow,
r = interval, A = admitted tokens, n0 = start, n = zero-based logical position of a token. All values count tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NEVER = 1 << 62
"""A start that no token reaches."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The schedule of one request.

    keep      K', cached tokens per KV head right after an event (in place: from start on)
    interval  r, tokens between events; the number of classes in place
    start     n0, the first token whose forward follows an event (in place: the first that overwrites another)
    capacity  most tokens ever cached per KV head
    in_place  True for replacement without events
    """

    keep: int
    interval: int
    start: int
    capacity: int
    in_place: bool

    def slot(self, n: int) -> int:
        """Slot of token n; event mode, or n < start in place, where the slot later differs per head."""
        if n < self.start:
            return n
        assert not self.in_place, "an overwriting token has one slot per head"
        return self.keep + (n - self.start) % self.interval

    def physical(self, seq_len: int) -> int:
        """Cached tokens per KV head while the newest of seq_len >= 1 tokens attends."""
        if self.in_place:
            return seq_len if seq_len <= self.start else self.keep
        return self.slot(seq_len - 1) + 1

    def fires(self, n: int) -> bool:
        """True when the cache must be brought to K' before the forward of token n."""
        if self.in_place:
            return n == self.start and self.start > self.keep
        return n >= self.start and (n - self.start) % self.interval == 0

    def events(self, cached: int) -> int:
        """Events (in place: overwritten tokens) once `cached` tokens were written: prompt and outputs but the last."""
        newest = cached - 1
        if newest < self.start:
            return 0
        if self.in_place:
            return newest - self.start + 1
        return (newest - self.start) // self.interval + 1


def event_lengths(keep: int, interval: int, admitted: int) -> Lengths:
    """Event mode: the cache grows to K' + r, then an event brings it back to K'."""
    start = max(keep + interval, admitted + 1)
    return Lengths(keep, interval, start, start, in_place=False)


def in_place_lengths(keep: int, interval: int, admitted: int) -> Lengths:
    """In-place mode; an admission longer than K' shrinks once, before token A + 1."""
    start = keep if admitted <= keep else admitted + 1
    return Lengths(keep, interval, start, max(keep, admitted + 1), in_place=True)


def unbounded_lengths() -> Lengths:
    """No eviction: every token keeps its own slot."""
    return Lengths(NEVER, 1, NEVER, NEVER, in_place=False)


def reserved_tokens(keep_ceiling: int, interval: int, admitted: int) -> int:
    """Upper bound of `capacity` over every request an engine may get with this admission, in tokens.

    The scheduler sees neither policy nor overflow: K' <= max(keep ceiling, A + r) because P <= A and recent <= r.
    """
    return max(keep_ceiling, admitted + interval) + interval


def physical_slots(n: np.ndarray, start: np.ndarray, keep: np.ndarray, interval: np.ndarray) -> np.ndarray:
    """Lengths.slot over many requests in event mode; int64 arrays of one shape, tokens."""
    return np.where(n < start, n, keep + (n - start) % interval)
