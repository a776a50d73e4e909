"""Cases of the frame: budgets, overflow, ties and NaN, the slot map."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from policies.base import Scorer
from policies.compaction import plan
from policies.select import Tally, select
from policies.vectors import Case, Found
from policies.vectors.cases import frame, margin, tensor, view
from policies.view import CacheView

IMPLEMENTATIONS = ("TriAttention HF", "TriAttention vLLM")


@dataclass(frozen=True)
class Given(Scorer):
    """Scores handed in as the view's attention."""

    name: ClassVar[str] = "given"

    def score(self, view: CacheView) -> torch.Tensor:
        """As given."""
        return view.need("attention")


def budget_layout(case: Case) -> Found:
    """Sizes of the parts, and the length that select really leaves."""
    slots = int(case["inputs"]["S"])
    parts = frame(case, slots)
    prot = parts.prot
    recent = min(parts.recent, slots - prot)
    candidates = slots - prot - recent
    kept = _kept(case, slots)
    return Found(
        {
            "no_op": slots <= int(case["params"]["K_total"]) and kept == slots,
            "n_protected": prot,
            "n_recent": recent,
            "n_candidates": candidates,
            "n_select": min(parts.n_select, candidates),
            "len_after": kept,
            "n_evicted": slots - kept,
            "overflow": parts.overflow,
            "effective_K_total": parts.keep,
        }
    )


def overflow(case: Case) -> Found:
    """A prompt that does not fit: our rule, or that of the implementation which the case names."""
    slots, params = int(case["inputs"]["S"]), case["params"]
    keep, prompt = int(params["K_total"]), int(params["prompt_len"])
    # where the file follows several implementations at once, the description begins with the one it means
    said = (str(case["follows"]), str(case.get("description", "")))
    followed = next((name for name in IMPLEMENTATIONS if any(text.startswith(name) for text in said)), None)
    if followed == "TriAttention HF":
        kept = list(range(min(keep, prompt, slots)))
    elif followed == "TriAttention vLLM":
        kept = list(range(slots))
    else:
        parts = frame(case, slots)
        event = view(parts, 1, slots, attention=torch.zeros(1, 1, slots))
        kept = select(Given(), event)[0, 0].tolist()
    values = {"kept": [kept], "evicted": [sorted(set(range(slots)) - set(kept))], "len_after": len(kept)}
    return Found(values, reference=followed is not None)


def given_scores(case: Case) -> Found:
    """The selection alone, from scores of one or more heads."""
    scores = tensor(case["inputs"]["scores"])
    return Found(_selection(scores.view(1, -1, scores.shape[-1]), int(case["params"]["n_select"])))


def bf16(case: Case) -> Found:
    """Selection from fp32 scores and from the same scores rounded to bf16."""
    scores = tensor(case["inputs"]["scores"], torch.float32)
    scores = scores.view(1, -1, scores.shape[-1])
    count = int(case["params"]["n_select"])
    rounded = scores.bfloat16()
    return Found(
        {
            "kept_fp32": _selection(scores, count)["kept"],
            "scores_bf16": rounded[0, 0].float().tolist(),
            "kept_bf16_stable": _selection(rounded, count)["kept"],
            "distinct_bf16_values": int(rounded.unique().numel()),
        }
    )


def compaction(case: Case) -> Found:
    """Both slot maps of one event, for one head or several, and the pages that it frees."""
    inputs = case["inputs"]
    slots = int(inputs["S"])
    single = not isinstance(inputs["kept"][0], list)
    kept = torch.tensor([inputs["kept"]] if single else inputs["kept"])[None]
    size = int(inputs.get("block_size", 1))
    before, after = -(-slots // size), -(-kept.shape[2] // size)
    maps = {
        name: _slot_map(kept, slots, order) for name, order in (("order_preserving", True), ("hole_filling", False))
    }
    values: dict[str, Any] = {
        "blocks_before": before,
        "blocks_after": after,
        "blocks_freed": before - after,
        "last_block_used_slots": kept.shape[2] - (after - 1) * size,
        "per_head": [{name: heads[head] for name, heads in maps.items()} for head in range(kept.shape[1])],
    }
    for name, heads in maps.items():
        by_head = isinstance(case["expected"].get(name), list)
        joined = {fact: [head[fact] for head in heads] for fact in heads[0]}
        values[name] = heads if by_head else heads[0] if single else joined
    return Found(values)


def positions(case: Case) -> Found:
    """Slots and logical positions of a request over its events; slots stay in chronological order."""
    inputs = case["inputs"]
    total = int(inputs["total_before_event1"])
    logical: torch.Tensor | None = None
    values: dict[str, Any] = {}
    for event in itertools.count(1):
        kept_slots = inputs.get(f"event{event}_kept_slots")
        if kept_slots is None:
            break
        kept = torch.tensor(kept_slots)[None]
        if logical is None:
            logical = torch.arange(total).repeat(1, kept.shape[1], 1)
        plan(kept, logical.shape[2], order=True).apply(logical)
        logical = logical[..., : kept.shape[2]]
        tail = "" if event == 1 else f"_{event}"
        values |= {
            f"logical_after_event{event}": logical[0].tolist(),
            f"next_logical_position{tail}": total,
            f"next_slot{tail}": logical.shape[2],
            f"delta_{event}" if tail else "delta_slot_minus_logical": logical.shape[2] - total,
        }
        new = torch.arange(total, total + int(inputs["new_tokens"])).repeat(1, kept.shape[1], 1)
        if inputs.get(f"event{event + 1}_kept_slots") is not None:
            logical, total = torch.cat((logical, new), dim=2), total + int(inputs["new_tokens"])
            values[f"logical_before_event{event + 1}"] = logical[0].tolist()
    return Found(values)


def _selection(scores: torch.Tensor, count: int) -> dict[str, Any]:
    tally = Tally()
    _, heads, slots = scores.shape
    event = CacheView(
        shape=(1, heads, slots),
        prot=0,
        recent=0,
        n_select=count,
        t=slots,
        layers=(0,),
        heads=tuple(range(heads)),
        draw=None,  # type: ignore[arg-type]
        attention=scores,
    )
    kept = select(Given(), event, tally)[0].tolist()
    return {
        "kept": kept,
        "evicted": [sorted(set(range(slots)) - set(row)) for row in kept],
        "nan_count": int(tally.nan_scores),
        "margin": [margin(row, count) for row in scores[0]],
    }


def _kept(case: Case, slots: int) -> int:
    event = view(frame(case, slots), 1, slots, attention=torch.zeros(1, 1, slots))
    return select(Given(), event).shape[2]


def _slot_map(kept: torch.Tensor, slots: int, order: bool) -> list[dict[str, Any]]:
    """Rows that really move, as (dst, src) by destination, and what lies where afterwards; per head."""
    moves = plan(kept, slots, order)
    logical = torch.arange(slots).repeat(1, kept.shape[1], 1)
    moves.apply(logical)
    pairs = torch.stack((moves.dst, moves.src), dim=-1)[0].tolist()
    return [
        {"moves_dst_src": sorted(pair for pair in rows if pair[0] != pair[1]), "logical_at_slot": places}
        for rows, places in zip(pairs, logical[0, :, : kept.shape[2]].tolist(), strict=True)
    ]
