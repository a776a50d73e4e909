"""The length algebra against a simulated cache that grows and is cut."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.vllm_engine.physical import (
    Lengths,
    event_lengths,
    in_place_lengths,
    physical_slots,
    reserved_tokens,
    unbounded_lengths,
)

KEEP, INTERVAL, ADMITTED = st.integers(1, 60), st.integers(1, 20), st.integers(1, 90)


def simulate_events(keep: int, interval: int, admitted: int, tokens: int) -> list[tuple[int, int, bool]]:
    """(slot, cached tokens, event before) of tokens admitted .. tokens - 1, by growing and cutting a list."""
    cache = list(range(admitted))
    seen = []
    for n in range(admitted, tokens):
        fires = len(cache) >= keep + interval and n > admitted
        if fires:
            cache = cache[:keep]
        cache.append(n)
        seen.append((len(cache) - 1, len(cache), fires))
    return seen


@given(KEEP, INTERVAL, ADMITTED)
def test_event_mode_is_a_cache_that_is_cut_when_full(keep: int, interval: int, admitted: int) -> None:
    lengths = event_lengths(keep, interval, admitted)
    tokens = admitted + 3 * interval + keep
    seen = simulate_events(keep, interval, admitted, tokens)
    n = np.arange(admitted, tokens)
    assert [lengths.slot(int(i)) for i in n] == [slot for slot, _, _ in seen]
    assert [lengths.physical(int(i) + 1) for i in n] == [cached for _, cached, _ in seen]
    assert [lengths.fires(int(i)) for i in n] == [fires for _, _, fires in seen]
    assert max(cached for _, cached, _ in seen) <= lengths.capacity
    assert lengths.events(tokens) == sum(fires for _, _, fires in seen)
    column = np.full(len(n), 1)
    assert physical_slots(n, column * lengths.start, column * keep, column * interval).tolist() == [
        s for s, _, _ in seen
    ]


@given(KEEP, INTERVAL, ADMITTED)
def test_in_place_never_holds_more_than_keep_after_start(keep: int, interval: int, admitted: int) -> None:
    lengths = in_place_lengths(keep, interval, admitted)
    cached, shrinks, overwritten = admitted, 0, 0
    tokens = admitted + 3 * interval + keep
    for n in range(admitted, tokens):
        full = cached >= keep and (admitted <= keep or n > admitted)
        if full and cached > keep:
            shrinks += 1
            cached = keep
            assert lengths.fires(n)
        else:
            assert not lengths.fires(n)
        overwritten += full
        cached += not full
        assert lengths.physical(n + 1) == cached <= lengths.capacity
    assert shrinks == (admitted > keep)
    assert lengths.events(tokens) == overwritten


@given(KEEP, INTERVAL, ADMITTED, st.booleans())
def test_reservation_covers_every_schedule_of_an_engine(
    keep: int, interval: int, admitted: int, in_place: bool
) -> None:
    """K' of any request is at most max(ceiling, A + r)."""
    ceiling = keep
    for effective in {keep, max(keep, admitted + interval)}:
        lengths = (in_place_lengths if in_place else event_lengths)(effective, interval, admitted)
        assert lengths.capacity <= reserved_tokens(ceiling, interval, admitted)


def test_unbounded_is_the_identity() -> None:
    lengths: Lengths = unbounded_lengths()
    assert [lengths.slot(n) for n in (0, 7, 10**9)] == [0, 7, 10**9]
    assert not lengths.fires(10**9)
    assert lengths.events(10**9) == 0


def test_published_example() -> None:
    """K = 8, r = 2, A = 3 by hand: tokens 10, 12, 14 follow an event."""
    lengths = event_lengths(8, 2, 3)
    assert [n for n in range(15) if lengths.fires(n)] == [10, 12, 14]
    assert [lengths.slot(n) for n in range(8, 14)] == [8, 9, 8, 9, 8, 9]
    assert lengths.physical(10) == 10, "the newest key must stay visible just before an event"
    assert lengths.events(10) == 0
    assert lengths.events(11) == 1
