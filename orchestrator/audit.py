"""What eviction would do to a user's own traces: fit, compression, and facts that must survive. Pure arithmetic.

Lengths and event times follow contracts.md section 1; survival is that of prompt-protected random eviction, the policy
that knows least, so it is the floor that a scored policy has to beat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.traces import Trace
from policies.budget import survival

PROMPTS_THAT_FIT = 0.99
FACTS_THAT_SURVIVE = 0.95


@dataclass(frozen=True, slots=True)
class Verdict:
    """One keep; shares of all traces, or of all reuses.

    unfit        prompts that do not fit keep beside the newest tokens
    never        traces in which no event happens: full cache and any policy give the same text
    compression  cached token-steps of the full cache over those kept, whole traces
    exposed      reuses with at least one event between statement and use
    per_head     expected share of reused statements still cached in a given KV head when they are used
    in_any_head  the same for at least one KV head of a layer
    """

    keep: int
    unfit: float
    never: float
    compression: float
    exposed: float
    per_head: float
    in_any_head: float


@dataclass(frozen=True, slots=True)
class Audit:
    """A file of traces; lengths in tokens. suggested is None where only the full cache would do.

    gaps  tokens between statement and use, of every reuse
    """

    prompts: tuple[int, ...]
    outputs: tuple[int, ...]
    stated: int
    gaps: tuple[int, ...]
    verdicts: tuple[Verdict, ...]
    suggested: Verdict | None


def audit(traces: Sequence[Trace], keeps: Sequence[int], interval: int, heads: int) -> Audit:
    """Judge `keeps` and suggest one: the smallest multiple of `interval` under which 99 % of the prompts fit and 95 %
    of the reused statements are expected in at least one of `heads` KV heads."""
    return Audit(
        prompts=tuple(trace.prompt for trace in traces),
        outputs=tuple(trace.output for trace in traces),
        stated=sum(trace.stated for trace in traces),
        gaps=tuple(use - source for trace in traces for source, use in trace.reuses),
        verdicts=tuple(judge(traces, keep, interval, heads) for keep in keeps),
        suggested=_suggest(traces, interval, heads),
    )


def judge(traces: Sequence[Trace], keep: int, interval: int, heads: int) -> Verdict:
    """One keep over all traces."""
    unfit = never = exposed = reuses = 0
    full = kept = alive = union = 0.0
    for trace in traces:
        held = max(keep, trace.prompt + interval)
        start = max(held + interval, trace.prompt + 1)
        unfit += trace.prompt + interval > keep
        never += _events(trace.total - 2, start, interval) == 0
        steps = np.arange(trace.prompt, trace.total)
        full += float(steps.sum())
        kept += float(np.where(steps < start, steps, held + (steps - start) % interval).sum())
        chance = survival(held, trace.prompt, interval)
        for source, use in trace.reuses:
            # Candidates are all but the newest `interval` tokens of an event.
            first = max(0, math.ceil((source + interval + 1 - start) / interval))
            count = max(0, _events(use, start, interval) - first)
            reuses += 1
            exposed += count > 0
            alive += chance**count
            union += 1 - (1 - chance**count) ** heads
    return Verdict(
        keep, unfit / len(traces), never / len(traces), full / kept if kept else 1.0, exposed / max(reuses, 1),
        alive / reuses if reuses else math.nan, union / reuses if reuses else math.nan,
    )  # fmt: skip


def _events(newest: int, start: int, interval: int) -> int:
    """Events up to the forward of token `newest`."""
    return 0 if newest < start else (newest - start) // interval + 1


def _suggest(traces: Sequence[Trace], interval: int, heads: int) -> Verdict | None:
    """Bisection over multiples of the interval: a larger keep never fits fewer prompts nor loses more."""

    def enough(units: int) -> Verdict | None:
        found = judge(traces, units * interval, interval, heads)
        fits = 1 - found.unfit >= PROMPTS_THAT_FIT
        return found if fits and not found.in_any_head < FACTS_THAT_SURVIVE else None

    low, high = 1, math.ceil(max(trace.total for trace in traces) / interval)
    best = enough(high)
    while best and low < high:
        middle = (low + high) // 2
        found = enough(middle)
        if found:
            best, high = found, middle
        else:
            low = middle + 1
    return best if best and best.never < 1 else None
