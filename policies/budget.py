"""Budgets, protection and overflow: integers in tokens, resolved before anything runs (contracts.md section 1).

Letters: K = keep, r = interval, P = prompt tokens (protection only), A = admitted tokens (lengths only).
Standard library only: planners and the scheduler side of vLLM import this without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Protection(StrEnum):
    """Which first tokens of a request are never candidates."""

    PROMPT = "prompt"
    SINKS = "sinks"
    NONE = "none"


class BudgetMode(StrEnum):
    """How a job's keep is read; resolves to (keep, recent) once, at expansion."""

    TOTAL = "total"
    PLUS_BUFFER = "plus_buffer"
    TOTAL_NO_RECENT = "total_no_recent"


class Overflow(StrEnum):
    """What happens when protected and recent tokens alone exceed keep."""

    GROW = "grow"
    PER_ARM = "per_arm"
    PUBLISHED = "published"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Layout:
    """How many slots each part of a cache gets at one event, in slots per KV head.

    keep      K' after the overflow rule
    prot, recent, n_select  kept first, newest and selected slots; together K', unless the cache is shorter
    overflow  protected and recent tokens alone exceed the budget's keep
    """

    keep: int
    prot: int
    recent: int
    n_select: int
    overflow: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """Resolved budget of one cell, in tokens per KV head.

    keep      cached KV pairs right after an event, prompt and recent tokens included
    interval  decoded tokens between events
    recent    newest tokens that are never candidates
    """

    keep: int
    interval: int
    recent: int


def resolve(keep: int, interval: int, mode: BudgetMode) -> Budget:
    """Turn a job's keep and budget mode into the pair that identity holds."""
    match mode:
        case BudgetMode.TOTAL:
            return Budget(keep, interval, interval)
        case BudgetMode.PLUS_BUFFER:
            return Budget(keep + interval, interval, interval)
        case BudgetMode.TOTAL_NO_RECENT:
            return Budget(keep, interval, 0)


def protected_tokens(protection: Protection, prompt: int, n_sink: int) -> int:
    """Protected prefix `prot` in tokens; a prompt shorter than the sinks still protects n_sink slots."""
    match protection:
        case Protection.PROMPT:
            return max(prompt, n_sink)
        case Protection.SINKS:
            return n_sink
        case Protection.NONE:
            return 0


def effective_keep(budget: Budget, prompt: int, prot: int, overflow: Overflow) -> int:
    """K' in tokens: keep after the overflow rule.

    `grow` uses the prompt whatever the arm protects, so that all arms of a comparison hold equal memory.
    `published` and `refuse` never change keep (the first shortens protection, the second rejects the row).
    """
    match overflow:
        case Overflow.GROW:
            return max(budget.keep, prompt + budget.recent)
        case Overflow.PER_ARM:
            return max(budget.keep, prot + budget.recent)
        case Overflow.PUBLISHED | Overflow.REFUSE:
            return budget.keep


def protected_prefix(budget: Budget, protection: Protection, prompt: int, n_sink: int, overflow: Overflow) -> int:
    """`prot` in tokens after the overflow rule: `published` shortens a prompt that does not fit to K - recent - 1."""
    prot = protected_tokens(protection, prompt, n_sink)
    if overflow is Overflow.PUBLISHED and prot + budget.recent > budget.keep:
        return max(budget.keep - budget.recent - 1, 0)
    return prot


def layout(budget: Budget, protection: Protection, prompt: int, n_sink: int, overflow: Overflow) -> Layout:
    """What an event of a request with `prompt` tokens keeps.

    Raises ValueError under `refuse` when protected and recent tokens alone exceed keep.
    """
    wanted = protected_tokens(protection, prompt, n_sink)
    too_long = wanted + budget.recent > budget.keep
    if too_long and overflow is Overflow.REFUSE:
        raise ValueError(
            f"{wanted} protected and {budget.recent} recent tokens exceed keep {budget.keep}; raise keep to at least "
            f"{wanted + budget.recent} or choose another overflow mode: grow, per_arm, published."
        )
    prot = protected_prefix(budget, protection, prompt, n_sink, overflow)
    keep = effective_keep(budget, prompt, prot, overflow)
    return Layout(keep, prot, budget.recent, keep - prot - budget.recent, too_long)


def survival(keep: int, prot: int, recent: int, interval: int | None = None) -> float:
    """Probability that a candidate survives one event of random eviction (contracts.md section 1); keep = K'.

    interval is r and defaults to recent; 0.0 when nothing can be selected.
    """
    selected = max(keep - prot - recent, 0)
    arrived = recent if interval is None else interval
    return selected / (selected + arrived) if selected else 0.0
