"""The policy protocol: frozen dataclasses that declare their needs and score slots; everything else is select.py.

Standard library only. A policy's tensor code is either an overridden method (user files) or a dotted name (built-ins),
so that the orchestrator can validate parameters without torch (contracts.md section 2).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch

    from policies.view import CacheView


@dataclass(frozen=True, slots=True)
class Needs:
    """What a policy must be given; engines that cannot give it refuse at start, by the field's name.

    Keys and values of the cache are always there.
    recent_queries      number of newest post-RoPE queries per query head (0 = none)
    attention           "" | "step" | "prefill": per slot, the sum of its softmax probabilities (over all visible slots,
                        fp32) over the query heads of its group and every decode step since it was written ("step"),
                        or over the prompt's queries as well ("prefill"); 0 for a new slot, moved with its slot
    positions           logical position of every slot
    order               slots must stay in chronological order (order-preserving compaction)
    calibration         statistics measured before the run on other texts
    all_layers          one event is scored with every layer at once
    hidden_states       last hidden state of every cached token
    token_ids           token id of every cached token
    slot_state          floats per slot that the policy updates at each event and that move with the slot (0 = none)
    """

    recent_queries: int = 0
    attention: str = ""
    positions: bool = False
    order: bool = False
    calibration: bool = False
    all_layers: bool = False
    hidden_states: bool = False
    token_ids: bool = False
    slot_state: int = 0


def resolve_dotted(name: str) -> Callable[..., Any]:
    """`package.module:attribute` -> the object. Raises ImportError or AttributeError as Python does."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


SLOT_ORDERS = ("position", "score")
POOLS = ("avg", "max")


@dataclass(frozen=True)
class Policy:
    """Base of all policies: class facts below, parameters are the subclass's dataclass fields.

    needs    a class attribute, or a property where a parameter decides
    evicts   False only for `full`
    shared   heads of a layer share one kept set
    example  values of parameters without a default, for pages and tests that build every policy
    equal_counts  every layer and head keeps the same number; the registry refuses False, since the heads and layers of
             a request share one cached length
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1
    needs: ClassVar[Needs] = Needs()
    evicts: ClassVar[bool] = True
    shared: ClassVar[bool] = False
    equal_counts: ClassVar[bool] = True
    example: ClassVar[Mapping[str, Any]] = {}

    def params(self) -> dict[str, Any]:
        """Parameter values by name: the part of a cell's identity that this policy owns."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Scorer(Policy):
    """Event policies: at an event every slot gets a score, higher is kept.

    slot_order  "position": kept slots stay in chronological order; "score": best first, which is what policies that
              pool over neighbouring slots then pool over at the next event (needs.order)
    rowwise   the scores of a layer and head depend on its draw and its positions alone, so that an engine may fold the
              events of several requests into one view, as further layers; t is then of no request in particular
    """

    scorer: ClassVar[str] = ""
    observer: ClassVar[str] = ""
    rowwise: ClassVar[bool] = False

    @property
    def slot_order(self) -> str:
        """One of SLOT_ORDERS."""
        return "position"

    def score(self, view: CacheView) -> torch.Tensor:
        """Scores [layers, kv_heads or 1, slots], or without the last `recent` slots; fp32 or int64.

        select.py overrides protected and recent slots.
        """
        return resolve_dotted(self.scorer)(self, view)

    def observe(self, view: CacheView) -> torch.Tensor:
        """New per-slot state, fp32 [layers, kv_heads, slots, needs.slot_state], of a policy that needs any.

        Called once per event, before it is scored: the engine scores a view with this state, and then moves it with the
        slots. view.slot_state holds the state so far, 0 in slots written since the last event.
        """
        return resolve_dotted(self.observer)(self, view)


@dataclass(frozen=True)
class Windowed(Scorer):
    """Scorers that look back from the newest `window` queries and pool over neighbouring slots.

    window      newest queries that score, shorter requests give fewer
    kernel      slots that are pooled around each, odd; 1 pools nothing
    pool        "avg" (neighbours beyond the ends count as 0) or "max"
    slot_order  order of the kept slots, hence what neighbours are at the next event: "position" (chronological) or
                "score" (best first, as the authors of R-KV and VaSE leave them)

    Raises ValueError for values out of range.
    """

    window: int = 64
    kernel: int = 5
    pool: str = "avg"
    slot_order: str = "position"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window is {self.window}; it must be at least 1.")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel is {self.kernel}; it must be odd and at least 1.")
        check_choice("pool", self.pool, POOLS)
        check_choice("slot_order", self.slot_order, SLOT_ORDERS)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The window's queries, and slots in the order that pooling relies on."""
        return Needs(recent_queries=self.window, order=True)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ValueError unless value is one of choices."""
    if value not in choices:
        raise ValueError(f"{name} is '{value}'; choose {' or '.join(choices)}.")


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless low <= value <= high (NaN is refused too)."""
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be {low} to {high}.")


@dataclass(frozen=True)
class Replacer(Policy):
    """In-place policies: no events; every new token overwrites one slot of the cache.

    The victim is a pure function of keys, computed where the write happens; `victim_slots` names that function
    (signature in policies/draws.py).
    """

    victim_slots: ClassVar[str] = "policies.draws:inplace_victims"
