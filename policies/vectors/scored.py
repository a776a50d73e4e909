"""Cases of the policies that score keys, queries, values or attention mass."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from policies.base import Scorer, Windowed
from policies.budget import Layout
from policies.compaction import plan
from policies.methods.vase import VaSE
from policies.scoring import redundancy, value_range
from policies.scoring import window as attention
from policies.select import best, rank, select
from policies.vectors import Case, Found
from policies.vectors.cases import DTYPES, GivenDraw, frame, margin, policy, run, tensor, view
from policies.vectors.frame import Given
from policies.view import CacheView

EXCLUDED = "protect_prompt=exclude"
EXCLUDING = "TriAttention repo"


def snapkv(case: Case) -> Found:
    """Mean attention per query head, pooled, mean over the group."""
    if case["params"].get("group") == "max_logits":
        return snapkv_rkv(case)
    scorer, event = _policy("snapkv", case), _event(case)
    raw = attention.mean_attention(event.need("queries")[0], _candidates(event)[0])
    pooled = attention.pooled(raw, scorer)
    return _found(
        case,
        scorer,
        event,
        attn_per_qhead=raw.flatten(0, 1).tolist(),
        pooled_per_qhead=pooled.flatten(0, 1).tolist(),
        score=scorer.score(event)[0].tolist(),
    )


def snapkv_rkv(case: Case) -> Found:
    """The group's largest logit, mean over queries, pooled; with either rule for ties."""
    scorer, event = _policy("snapkv_rkv", case), _event(case)
    queries, keys = event.need("queries")[0], event.need("keys")[0]
    largest = attention.logits(queries, keys).amax(1)
    raw = attention.by_layer(event, attention.max_attention)
    by_raw = select(dataclasses.replace(scorer, ties="raw"), event)  # type: ignore[call-arg]
    return _found(
        case,
        scorer,
        event,
        logits_max_over_group=(largest[0] if len(largest) == 1 else largest).tolist(),
        attn_mean=raw[0].tolist(),
        pooled=attention.pooled(raw, scorer)[0].tolist(),
        kept_if_ties_by_raw_score=by_raw[0].tolist(),
    )


def rkv(case: Case) -> Found:
    """Importance against redundancy among candidates."""
    scorer, event = _policy("rkv", case), _event(case)
    unit = redundancy.directions(_candidates(event)[0])
    similarity = redundancy.mean_cosine(unit)
    return _found(
        case,
        scorer,
        event,
        cosine=_per_head(_cosine(unit)),
        mean_similarity=_per_head(similarity),
        similarity_softmax=_per_head(similarity.softmax(-1)),
        attn=attention.snapkv(scorer, event)[0].tolist(),
        score=scorer.score(event)[0].tolist(),
    )


def rkv_official(case: Case) -> Found:
    """Importance against redundancy over all slots, after each forgave one."""
    scorer, event = _policy("rkv_official", case), _event(case)
    threshold, retain = scorer.params()["threshold"], scorer.params()["retain"]
    unit = redundancy.directions(event.need("keys")[0])
    cosine = _cosine(unit)
    similarity = redundancy.mean_cosine(unit) - redundancy.forgiven(unit, threshold, retain)
    pooled = attention.pooled(attention.by_layer(event, attention.max_attention), scorer)
    return _found(
        case,
        scorer,
        event,
        cosine=_per_head(cosine),
        zeroed_column_per_row=_per_head(redundancy.forgiven_slot(cosine, threshold, retain)),
        mean_similarity=_per_head(similarity),
        similarity_softmax=_per_head(similarity.softmax(-1)),
        attn_pooled=pooled[0].tolist(),
        score=scorer.score(event)[0].tolist(),
    )


def vase(case: Case) -> Found:
    """Width of values and a draw by attention, with the case's exponential noise."""
    return _vase(case, "vase")


def vase_paper(case: Case) -> Found:
    """The same with the paper's rule for a protected prompt."""
    return _vase(case, "vase_paper")


def h2o(case: Case) -> Found:
    """Accumulated attention over any number of events; new slots start at 0."""
    inputs, scorer = case["inputs"], policy("h2o", case["params"])
    steps = _probabilities(case)
    stated = re.search(r"H_kv=(\d+)", str(inputs.get("probs_shape", "")))
    heads = int(stated[1]) if stated else 1
    mass = torch.zeros(1, heads, 0)
    logical = torch.zeros(1, heads, 0, dtype=torch.int64)
    total = 0
    values: dict[str, Any] = {}
    for event, probabilities in enumerate(steps, 1):
        slots = probabilities.shape[2]
        new = slots - mass.shape[2]
        mass = torch.nn.functional.pad(mass, (0, new)) + probabilities.unflatten(0, (heads, -1)).sum((1, 2))
        logical = torch.cat((logical, torch.arange(total, total + new).expand(1, heads, new)), dim=2)
        total += new
        kept = select(scorer, view(parts := frame(case, slots), heads, slots, attention=mass))
        inner = mass[0, :, parts.prot : slots - parts.recent]
        values |= {
            f"acc_event{event}": mass[0].tolist(),
            f"kept_event{event}": kept[0].tolist(),
            f"margin_event{event}": [margin(row, parts.n_select) for row in inner],
        }
        moves = plan(kept, slots, order=True)
        for table in (mass, logical):
            moves.apply(table)
        mass, logical = mass[..., : kept.shape[2]], logical[..., : kept.shape[2]]
        values |= {
            f"acc_after_event{event}": mass[0].tolist(),
            f"logical_after_event{event}": logical[0].tolist(),
        }
    return Found(values | _series(case["expected"], values, len(steps)))


def _probabilities(case: Case) -> list[torch.Tensor]:
    """Attention between events, [H_q, queries, S] each: an entry of inputs per event, or one list of steps."""
    given = [value for name, value in case["inputs"].items() if name.startswith("probs") and isinstance(value, list)]
    steps = given[0] if case["variant"] == "every_step" and len(given) == 1 else given
    tensors = [tensor(step) for step in steps]
    # a step of one query or one head may leave that dimension out
    return [step if step.dim() == 3 else step.reshape(-1, 1, step.shape[-1]) for step in tensors]


def _series(expected: Any, values: dict[str, Any], events: int) -> dict[str, Any]:
    """Facts of all events as one list, under the names of the file that are not an event's."""
    facts = {"logical": "logical_after", "margin": "margin", "after": "acc_after", "acc": "acc", "kept": "kept"}
    found = {}
    for name in expected:
        fact = next((fact for word, fact in facts.items() if word in name), None)
        if name not in values and fact is not None:
            found[name] = [values[f"{fact}_event{event}"] for event in range(1, events + 1)]
    return found


def snapkv_prefill(case: Case) -> Found:
    """SnapKV's own rule for prompts: causal in the window, summed over it, one set per query head."""
    event, params = _event(case), case["params"]
    queries, keys = event.need("queries")[0], event.need("keys")[0]
    width, slots = queries.shape[1], keys.shape[1]
    logits = attention.logits(queries, keys).flatten(0, 1)
    later = torch.arange(slots) > torch.arange(slots - width, slots)[:, None]
    weights = logits.masked_fill(later, float("-inf")).softmax(-1).sum(1)[:, : slots - width]
    pooled = attention.pooled(weights[None], _policy("snapkv", case))[0]
    count = int(params["K_total"]) - width
    kept = [[*row, *range(slots - width, slots)] for row in best(pooled[None], count)[0].tolist()]
    return Found(
        {
            "attn_sum_per_qhead": weights.tolist(),
            "pooled_per_qhead": pooled.tolist(),
            "kept_per_query_head": kept,
            "margin": [margin(row, count) for row in pooled],
        },
        reference=True,
    )


def rkv_shared_set(case: Case) -> Found:
    """R-KV in vLLM: one set for all layers and heads, by the sum over layers of the mean over heads."""
    _policy("rkv", case)  # refuses parameters that it does not have
    scores = tensor(case["inputs"]["scores"])
    window = int(case["params"]["window"])
    count = int(case["params"]["K_total"]) - window
    total = scores.mean(1).sum(0)
    slots = len(total) + window
    kept = [*best(total[None, None], count)[0, 0].tolist(), *range(slots - window, slots)]
    return Found({"total": total.tolist(), "kept_shared": kept, "margin": margin(total, count)}, reference=True)


def pooling_order(case: Case) -> Found:
    """Pooling over slots in either order of the same tokens: what slot_order changes."""
    inputs, scorer = case["inputs"], _policy("snapkv_rkv", case)
    count = int(case["params"]["n_select"])
    raw = {int(position): float(score) for position, score in inputs["raw_by_logical"].items()}
    values: dict[str, Any] = {}
    for name in ("position", "score"):
        order = inputs[f"slots_{name}_order"]
        pooled = attention.pooled(torch.tensor([[[raw[position] for position in order]]], dtype=torch.float64), scorer)
        chosen = select(Given(), view(Layout(count, 0, 0, count, False), 1, len(order), attention=pooled))
        values[f"pooled_{name}_order"] = pooled[0, 0].tolist()
        values[f"kept_logical_{name}_order"] = sorted(order[slot] for slot in chosen[0, 0].tolist())
    return Found(values)


@dataclass(frozen=True)
class _GivenAttention(Scorer):
    """VaSE from a case's own attention and widths."""

    vase: VaSE
    attention: torch.Tensor
    width: torch.Tensor
    name: ClassVar[str] = "vase"

    def score(self, view: CacheView) -> torch.Tensor:
        return value_range.sampled(self.vase, view, self.attention, self.width)


def _vase(case: Case, name: str) -> Found:
    inputs = case["inputs"]
    scorer = policy(name, {key: value for key, value in case["params"].items() if key not in ("recent", "window")})
    assert isinstance(scorer, VaSE)
    noise = tensor(inputs["exp_noise"])[None]
    draw = GivenDraw(0, 0, (0,), tuple(range(noise.shape[1])), (-noise).exp())
    if "keys" in inputs:
        event = _event(case, sinks=False, draw=draw)
        weights = attention.snapkv(scorer, event)
        spread = value_range.value_range(event.need("values"))
    else:
        weights = tensor(_given(inputs, "attn", "attention", "probabilities", "p"))[None]
        spread = _given_width(inputs, weights)
        slots = int(inputs.get("S", weights.shape[2] + int(case["params"].get("recent", 0))))
        event = view(frame(case, slots, sinks=False), weights.shape[1], slots, draw=draw)
    end = event.shape[2] - event.recent
    width = value_range.with_sinks(scorer, spread[..., :end])
    chooser = scorer if "keys" in inputs else _GivenAttention(scorer, weights, spread[..., :end])
    scores = chooser.score(event)
    count = scorer.widest(event.keep, event.prot, event.n_select)
    large = [[slot + event.prot for slot in row] for row in rank(width[0, :, event.prot :])[:, :count].tolist()]
    big = scores[0].isinf()
    done = run(chooser, event).facts()
    values = {
        **done,
        "value_range": spread[0].tolist(),
        "magnitude_with_sinks": width[0].tolist(),
        "n_big": count,
        "large_in_order": large,
        "attn": weights[0].tolist(),
        "attn_zeroed": weights[0].masked_fill(big, 0.0).tolist(),
        "sample_key": scores[0].masked_fill(big, float("-inf")).tolist(),
        "sampled_in_order": [
            [slot for slot in row if slot not in wide]
            for row, wide in zip(done["selected_in_score_order"], large, strict=True)
        ],
    }
    return Found(values)


def _given(inputs: Any, *names: str) -> Any:
    """The first of these inputs. Raises LookupError where there is none."""
    found = [inputs[name] for name in names if name in inputs]
    if not found:
        raise LookupError(f"inputs need {' or '.join(names)}")
    return found[0]


def _given_width(inputs: Any, weights: torch.Tensor) -> torch.Tensor:
    """Widths [1, H, N] from values, from themselves, or from a list of the slots that are widest."""
    if "values" in inputs:
        return value_range.value_range(tensor(inputs["values"])[None])
    if "large" in inputs:
        rows = inputs["large"] if isinstance(inputs["large"][0], list) else [inputs["large"]]
        return torch.zeros_like(weights).scatter_(2, torch.tensor([rows]), 1.0)
    return tensor(_given(inputs, "value_range", "range"))[None]


def _found(case: Case, scorer: Windowed, event: CacheView, **more: Any) -> Found:
    """Facts of the event; where a case excludes the prompt instead of overriding it, of what is left without it."""
    if case["variant"] != EXCLUDED and not str(case["follows"]).startswith(EXCLUDING):
        return Found({**run(scorer, event).facts(), **more})
    prot, slots = event.prot, event.shape[2]
    rest = dataclasses.replace(
        event,
        shape=(1, event.shape[1], slots - prot),
        prot=0,
        keys=event.need("keys")[:, :, prot:],
        values=None,
        positions=None,
    )
    facts = run(scorer, rest).facts()
    kept = [[*range(prot), *(slot + prot for slot in row)] for row in facts["kept"]]
    chosen = [[slot + prot for slot in row] for row in facts["selected_in_score_order"]]
    values = {
        "kept": kept,
        "evicted": [sorted(set(range(slots)) - set(row)) for row in kept],
        "margin": facts["margin"],
        "selected_in_score_order": chosen,
        "score": scorer.score(rest)[0].tolist(),
    }
    return Found(values, reference=True)


def _policy(name: str, case: Case) -> Windowed:
    """The registered policy; a case's window is its recent buffer as well."""
    scorer = policy(name, {key: value for key, value in case["params"].items() if key != "n_sink"})
    assert isinstance(scorer, Windowed)
    return scorer


def _event(case: Case, *, sinks: bool = True, **more: Any) -> CacheView:
    """The event of a case with keys, queries and perhaps values, [1, heads, slots or w, D]."""
    inputs = case["inputs"]
    dtype = DTYPES.get(str(case["params"].get("dtype", "")), torch.float64)
    tensors = {name: tensor(inputs[name], dtype)[None] for name in ("keys", "queries", "values") if name in inputs}
    heads, slots = tensors["keys"].shape[1:3]
    return view(frame(case, slots, sinks=sinks), heads, slots, **tensors, **more)


def _candidates(event: CacheView) -> torch.Tensor:
    return event.need("keys")[:, :, : event.shape[2] - event.recent]


def _cosine(unit: torch.Tensor) -> torch.Tensor:
    """Cosines of every pair, [H, N, N], 0 with itself."""
    cosine = unit @ unit.transpose(1, 2)
    return cosine.masked_fill(torch.eye(cosine.shape[1], dtype=torch.bool), 0.0)


def _per_head(rows: torch.Tensor) -> Any:
    """The file leaves the head out where there is one."""
    return (rows[0] if len(rows) == 1 else rows).tolist()
