"""Cases of the policies that look at no tensor of the cache: full, recent, streaming_llm and the random family."""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from policies.budget import survival
from policies.compaction import plan
from policies.registry import build
from policies.select import select
from policies.vectors import Case, Found
from policies.vectors.cases import GivenDraw, frame, policy, run, tensor, view

NAMES = {"recent": "recent", "streamingllm": "streaming_llm"}
_MANY = 1 << 30
RANDOM = {"per_head": "random", "shared": "random_shared", "block": "random_block"}


def full(case: Case) -> Found:
    """Nothing is evicted, whatever the budget."""
    slots = int(case["inputs"]["S"])
    assert not build("full", {}).evicts
    return Found({"kept": [list(range(slots))], "evicted": [[]], "len_after": slots})


def window(case: Case) -> Found:
    """One event of a sliding window, with sinks or without."""
    slots = int(case["inputs"]["S"])
    event = view(frame(case, slots), 1, slots)
    return Found(run(policy(NAMES[case["policy"]], case["params"]), event).facts())


def two_events(case: Case) -> Found:
    """Two events with new tokens between them, slots in chronological order."""
    inputs, scorer = case["inputs"], policy(NAMES[case["policy"]], case["params"])
    logical = torch.arange(int(inputs["S_first"])).view(1, 1, -1)
    values: dict[str, Any] = {}
    for event in (1, 2):
        slots = logical.shape[2]
        kept = select(scorer, view(frame(case, slots), 1, slots, positions=logical))
        values |= {
            f"event{event}_slots_before": slots,
            f"event{event}_kept_slots": kept[0].tolist(),
            f"event{event}_logical_positions": logical.gather(2, kept)[0].tolist(),
        }
        total = int(logical.max()) + 1
        plan(kept, slots, order=True).apply(logical)
        new = torch.arange(total, total + int(inputs["new_tokens_between"])).view(1, 1, -1)
        logical = torch.cat((logical[..., : kept.shape[2]], new), dim=2)
    return Found(values)


def random(case: Case) -> Found:
    """One event with injected uniform numbers, per slot or per run of slots."""
    params, u = case["params"], tensor(case["inputs"]["u"])[None]
    block = int(params.get("block", 1)) if case["variant"] == "block" else 1
    slots = _slots(case, u.shape[2], block)
    parts = frame(case, slots)
    draw = GivenDraw(0, 0, (0,), tuple(range(u.shape[1])), u, parts.prot if block > 1 else 0)
    event = view(parts, u.shape[1], slots, draw=draw)
    own = {"block": block} if case["variant"] == "block" else {}
    done = run(policy(RANDOM[case["variant"]], own), event)
    # the registered policy ranks bits of these numbers
    scores = done.candidates.contiguous().view(torch.float64)
    done = type(done)(event, scores, done.kept)
    shown = torch.full((u.shape[1], slots), math.inf, dtype=torch.float64)
    shown[:, parts.prot : slots - parts.recent] = scores[0]
    return Found({**done.facts(), "scores": shown.tolist()}, reference=bool(parts.prot % block))


def statistics(case: Case) -> Found:
    """Laws of random eviction: survival of one token, overlap of two heads."""
    wanted, inputs = case["expected"], {**case["params"], **case["inputs"]}
    if "table" in wanted:
        return Found({"table": [_survival(row) for row in wanted["table"]]})
    keep = int(next(inputs[name] for name in ("K", "K_total", "n_select", "n") if name in inputs))
    slots = int(
        next((inputs[name] for name in ("N", "S", "n_candidates") if name in inputs), keep + inputs.get("r", 0))
    )
    mean = keep * keep / slots
    variance = keep * (keep / slots) * (1 - keep / slots) * (slots - keep) / (slots - 1)
    by_word = {
        "shared": keep,
        "std": math.sqrt(variance),
        "sd": math.sqrt(variance),
        "var": variance,
        "min": max(2 * keep - slots, 0),
        "max": keep,
        "mean": mean,
        "expected": mean,
        "overlap": mean,
    }
    named = {key: next((value for word, value in by_word.items() if word in key), None) for key in wanted}
    return Found({key: value for key, value in named.items() if value is not None})


def _survival(row: dict[str, Any]) -> dict[str, Any]:
    """The facts of a row and what follows from them."""
    keep, interval, prompt = (int(row[name]) for name in ("K", "r", "prompt"))
    match row["convention"]:
        case "K_plus_buffer":
            chance = survival(keep + interval, prompt, interval)
        case "buffer_inside_K":
            chance = survival(keep, prompt, interval)
        case "no_recent":
            chance = survival(keep, prompt, 0, interval)
        case other:
            raise ValueError(f"unknown convention '{other}'; known: K_plus_buffer, buffer_inside_K, no_recent")
    after = {name: chance ** int(found[1]) for name in row if (found := re.fullmatch(r"after_(\d+)", name))}
    facts = {name: row[name] for name in ("K", "r", "prompt", "convention")}
    return {**facts, "per_event": chance, **after}


def _slots(case: Case, columns: int, block: int) -> int:
    """S: as the case says, as wide as its scores, or one number per slot."""
    if "S" in case["inputs"]:
        return int(case["inputs"]["S"])
    if "scores" in case["expected"]:
        return len(case["expected"]["scores"][0])
    if block == 1:
        return columns
    parts = frame(case, _MANY)
    return parts.prot + columns * block + parts.recent
