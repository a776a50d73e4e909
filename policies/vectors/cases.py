"""What every adapter needs: numbers of a case as tensors, the frame that its params describe, a run through select."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from policies.base import Scorer
from policies.budget import Budget, Layout, Overflow, Protection, layout, protected_tokens
from policies.draws import Draw
from policies.registry import build, get
from policies.select import rank, select
from policies.vectors import FRAME, Case
from policies.view import CacheView

DTYPES = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16, "float16": torch.float16}
ALIASES = {"lambda": "mix_lambda", "lam": "mix_lambda"}
GROUPS = {"snapkv_rkv": "max_logits", "rkv_official": "max_logits"}


@dataclass(frozen=True)
class GivenDraw(Draw):
    """Draws handed in by a case instead of made from a key.

    u      uniform numbers, fp64 [1, H, S], or one per run [1, H, runs]
    first  slot where the first run begins; what lies before it has its number
    """

    u: torch.Tensor
    first: int = 0

    def keys(self, slots: int, first: int = 0) -> torch.Tensor:
        """The bits of numbers >= 0, which rank as the numbers do; those before `first` do not matter."""
        return self.uniform(slots).contiguous().view(torch.int64)

    def shared_keys(self, slots: int, first: int = 0) -> torch.Tensor:
        """The first head's."""
        return self.keys(slots)[:, :1]

    def block_keys(self, slots: int, block: int) -> torch.Tensor:
        """One number per run; the file may count runs from the first candidate."""
        runs = GivenDraw(self.seed, self.event, self.layers, self.heads, self.u.repeat_interleave(block, dim=2))
        return torch.nn.functional.pad(runs.keys(slots)[..., : slots - self.first], (self.first, 0))

    def uniform(self, slots: int) -> torch.Tensor:
        """As given; slots that the case says nothing about have 0."""
        missing = max(slots - self.u.shape[2], 0)
        return torch.nn.functional.pad(self.u, (0, missing))[..., :slots]


@dataclass(frozen=True)
class Run:
    """A case's event: what was scored, and what stayed."""

    view: CacheView
    candidates: torch.Tensor
    kept: torch.Tensor

    def facts(self) -> dict[str, Any]:
        """What the file may ask of every event."""
        kept = [sorted(row) for row in self.kept[0].tolist()]
        slots = set(range(self.view.shape[2]))
        count = self.view.n_select
        return {
            "kept": kept,
            "evicted": [sorted(slots - set(row)) for row in kept],
            "margin": [margin(row, count) for row in self.candidates[0]],
            "selected_in_score_order": (rank(self.candidates)[0, :, :count] + self.view.prot).tolist(),
            "n_select": count,
            "len_after": self.kept.shape[2],
        }


def tensor(rows: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Nested lists of numbers, or of 'inf', '-inf', 'nan' and '-0.0', as a tensor."""
    return torch.tensor(_numbers(rows), dtype=dtype)


def frame(case: Case, slots: int, *, sinks: bool = True) -> Layout:
    """The parts of a case's event: K_total is kept whatever its prompt, unless protected and recent slots exceed it.

    A case may give n_select instead of K_total.

    sinks   n_sink first slots are protected; False where the policy itself treats them
    """
    params = case["params"]
    recent = int(params.get("recent", params.get("window", 0)))
    protection = Protection.PROMPT if params.get("protect_prompt") else Protection.SINKS
    n_sink = int(params.get("n_sink", 0)) if sinks or protection is Protection.PROMPT else 0
    prompt = int(params.get("prompt_len", 0))
    keep = params.get("K_total", protected_tokens(protection, prompt, n_sink) + int(params.get("n_select", 0)) + recent)
    # `window` cases keep their window, whatever the interval
    budget = Budget(int(keep), max(recent, 1), recent)
    found = layout(budget, protection, prompt, n_sink, Overflow.PER_ARM)
    return dataclasses.replace(found, prot=min(found.prot, slots))


def view(parts: Layout, heads: int, slots: int, **tensors: Any) -> CacheView:
    """One layer's event with `heads` KV heads."""
    shape = (1, heads, slots)
    given = {"draw": Draw(0, 0, (0,), tuple(range(heads))), "positions": torch.arange(slots).expand(shape), **tensors}
    return CacheView(
        shape=shape,
        prot=parts.prot,
        recent=parts.recent,
        n_select=parts.n_select,
        t=slots,
        layers=(0,),
        heads=tuple(range(heads)),
        **given,
    )


def policy(name: str, params: Mapping[str, Any]) -> Scorer:
    """The registered policy with what a case's params say about it.

    Raises ValueError for a parameter that neither the policy nor the frame has, so that none is ignored.
    """
    fields = {field.name for field in dataclasses.fields(get(name))}
    given = {ALIASES.get(key, key): value for key, value in params.items()}
    unknown = given.keys() - fields - FRAME - {"kernel", "pool"}
    if unknown:
        raise ValueError(f"policy '{name}' has no parameter '{min(unknown)}'; parameters: {', '.join(sorted(fields))}")
    group = GROUPS.get(name, "mean_after_softmax")
    if given.get("group", group) != group:
        raise ValueError(f"policy '{name}' reduces groups by {group}, not by {given['group']}")
    values = {key: value for key, value in given.items() if key in fields}
    if given.get("pool") == "none" or given.get("kernel") == 0:
        values |= {"kernel": 1, "pool": "avg"}
    built = build(name, values)
    assert isinstance(built, Scorer)
    return built


def run(scorer: Scorer, event: CacheView) -> Run:
    """Score and select as engines do."""
    scores = scorer.score(event)
    heads = event.shape[1]
    inner = scores[..., event.prot : event.shape[2] - event.recent].expand(-1, heads, -1)
    return Run(event, inner, select(scorer, event))


def margin(scores: torch.Tensor, count: int) -> float | None:
    """Gap between the lowest kept and the highest evicted score, None when nothing is cut."""
    if not 0 < count < len(scores):
        return None
    ordered = scores[rank(scores)].tolist()
    gap: float = ordered[count - 1] - ordered[count]
    return gap


def _numbers(rows: Any) -> Any:
    return [_numbers(row) for row in rows] if isinstance(rows, list) else float(rows)
