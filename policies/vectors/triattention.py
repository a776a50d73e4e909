"""TriAttention's cases of a vector file, computed by the registered class and the calibration's own functions.

Cases that follow another implementation (another deviation, other shared sets) are computed by plain functions here:
the registered class knows only the form of policies.md section 8.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from policies.calibration import Calibration, Meta, band_dims
from policies.methods.triattention import TriAttention
from policies.scoring.triattention import STD_FLOOR, event_weights, future_turns, head_scores, normalized
from policies.scoring.triattention import reference_scores as papers_scores
from policies.select import rank
from policies.vectors import Case, Found, cases
from policies.view import CacheView

# Keys after the rotation come with six digits; the two forms of a score may differ by what that loses.
_ROUNDED = 2e-5


def run(case: Case) -> Found:
    """Every value that a case of its variant may ask for. Raises LookupError for a variant that is not known here."""
    variant = str(case["variant"])
    for name, compute in _VARIANTS.items():
        if variant == name or (variant.startswith((f"{name} ", f"{name}_")) and _details(variant[len(name) :])):
            return compute(case)
    raise LookupError(f"no variant '{variant}' of policy 'triattention'; known variants: {', '.join(_VARIANTS)}")


@dataclass(frozen=True)
class _Listed(TriAttention):
    """The class with a case's own list of distances."""

    listed: tuple[int, ...] = ()

    @property
    def distances(self) -> tuple[int, ...]:
        """As the case lists them."""
        return self.listed


@dataclass(frozen=True, slots=True)
class _Event:
    """A case's one event, in one layer: keys before and after the rotation [H, S, D], positions [S]."""

    statistics: Calibration
    before: torch.Tensor
    after: torch.Tensor
    positions: torch.Tensor
    t: int

    def raw(self, policy: TriAttention) -> torch.Tensor:
        """Head scores [H_q, S] on cached keys. Raises ValueError when the paper's form gives others."""
        scores = head_scores(self.after, event_weights(policy, self.statistics, [0], self.t))
        group = len(scores) // len(self.after)
        for head, own in enumerate(scores):
            paper = papers_scores(policy, self.statistics, 0, head, self.before[head // group], self.positions, self.t)
            difference = float((own.double() - paper).abs().max())
            if difference > _ROUNDED:
                raise ValueError(f"the forms before and after the rotation differ by {difference:.2g} in head {head}")
        return scores

    def view(self, case: Case) -> CacheView:
        """The event as the frame sees it."""
        heads, slots, _ = self.after.shape
        view = cases.view(
            cases.frame(case, slots),
            heads,
            slots,
            keys=self.after[None],
            calibration=self.statistics,
            positions=self.positions.expand(1, heads, slots),
        )
        return replace(view, t=self.t)


def _score(case: Case) -> Found:
    """Raw scores of one head, and what they keep."""
    policy, event = _policy(case, normalize=False), _event(case)
    raw = event.raw(policy)
    weights = event_weights(policy, event.statistics, [0], event.t)
    values = {
        "score": raw[0].tolist() if len(raw) == 1 else raw.tolist(),
        **cases.run(policy, event.view(case)).facts(),
    }
    if len(weights.queries) == 1:
        query = weights.queries[0, 0, 0]
        values["virtual_query_real"] = query[weights.real].tolist()
        values["virtual_query_imag"] = query[weights.imag].tolist()
    return Found(values)


def _spec(case: Case) -> Found:
    """Prompt and recent outside the candidates, population deviation: what the registered class does."""
    policy, event = _policy(case), _event(case)
    view, raw = event.view(case), event.raw(policy)
    done = cases.run(policy, view)
    end = view.shape[2] - view.recent
    return Found(
        {
            "raw_scores": raw.tolist(),
            "z": normalized(raw, view.prot, end)[:, view.prot : end].tolist(),
            "score_decode": done.candidates[0].tolist(),
            "score_candidates": done.candidates[0].tolist(),
            **done.facts(),
        }
    )


def _vllm(case: Case) -> Found:
    """z-scores over all slots with the sample deviation."""
    event = _event(case)
    z = sample_z(event.raw(_policy(case)))
    scores = z.unflatten(0, (len(event.after), -1)).amax(1)
    view = event.view(case)
    candidates = scores[:, view.prot : view.shape[2] - view.recent]
    fixed = [*range(view.prot), *range(view.shape[2] - view.recent, view.shape[2])]
    chosen = (rank(candidates)[:, : view.n_select] + view.prot).tolist()
    values = {
        "z": z.tolist(),
        "score": scores.tolist(),
        "kept": [sorted([*row, *fixed]) for row in chosen],
        "margin": _margins(candidates, view.n_select),
    }
    return Found(values, reference=True)


def _aggregation(case: Case) -> Found:
    """Normalised head scores [L, H_q, N] to kept sets, in the three ways of the authors' code."""
    z = torch.tensor(case["inputs"]["z"], dtype=torch.float64)
    count, groups = int(case["params"]["n_select"]), _kv_heads(case, z.shape[1])
    best = z.unflatten(1, (groups, -1)).amax(2)
    shared = best.mean(0)
    heads = z.flatten(0, 1)
    union = sorted({slot for row in _top(heads, count) for slot in row})
    combined = heads.amax(0)
    ranked = [union[place] for place in rank(combined[union]).tolist()]
    values = {
        "per_layer_perhead": {
            "score": best.tolist(),
            "kept": [_top(layer, count) for layer in best],
            "margin": [_margins(layer, count) for layer in best],
        },
        "per_head": {
            "score": shared.tolist(),
            "kept_shared_by_all_layers": _top(shared, count),
            "margin": _margins(shared, count),
        },
        "union": {
            "union": union,
            "combined": combined.tolist(),
            "kept_shared_by_all": sorted(ranked[:count]),
            "margin": _margins(combined[union][None], count)[0],
        },
    }
    return Found(values, reference=True)


def _ports(case: Case) -> Found:
    """Raw head scores [L, H_q, N] to one set: normalise, group, average; or group, normalise, take the largest."""
    raw = next((cases.tensor(rows) for rows in case["inputs"].values() if _depth(rows) == 3), None)
    if raw is None:
        raise ValueError("a case of variant 'ports' needs raw head scores [layers][query heads][slots]")
    count = int(case["params"].get("n_select", case["params"].get("K_total", 0)))
    groups = _kv_heads(case, raw.shape[1])
    population = torch.stack([normalized(layer, 0, layer.shape[1]) for layer in raw])
    sample = torch.stack([sample_z(layer) for layer in raw])
    grouped = torch.stack([sample_z(layer) for layer in raw.unflatten(1, (groups, -1)).amax(2)])
    shared = {
        "hf": population.unflatten(1, (groups, -1)).amax(2).mean(0),
        "vllm": sample.unflatten(1, (groups, -1)).amax(2).mean(0),
        "sglang": grouped.amax(0),
    }
    names = {key: next((port for port in shared if port in key.lower()), None) for key in case["expected"]}
    result: dict[str, Any] = {}
    for key, port in names.items():
        if port is not None:
            scores = shared[port]
            values = {"score": scores.tolist(), "kept": _top(scores, count), "margin": _margins(scores, count)}
            part = next((name for name in values if name in key.lower()), None)
            result[key] = values if part is None else values[part]
    return Found(result, reference=True)


def _offset_mean(case: Case) -> Found:
    columns: Sequence[str] = case["inputs"]["columns"]
    policy = _Listed(listed=tuple(case["inputs"]["offsets"]))
    head_dim = int(case["params"].get("head_dim", 128))
    rows = []
    for theta, band, *_ in case["expected"]["rows"]:
        omega = theta ** (-2 * band / head_dim)
        mean = complex(future_turns(policy, _statistics([[0.0]], [[0.0]], [[0.0]], [omega]), 0)[0, 0])
        values = {"rope_theta": theta, "f": band, "omega_f": omega, "abs_c": abs(mean), "re_c": mean.real,
                  "im_c": mean.imag}  # fmt: skip
        rows.append([values[column] for column in columns])
    return Found({"rows": rows})


def _calibration(case: Case) -> Found:
    """Means over queries; queries after the rotation are turned back with their positions first."""
    inputs, params = case["inputs"], case["params"]
    rotated = "q_pre_rope" not in inputs
    queries = np.array(inputs["q_post_rope"] if rotated else inputs["q_pre_rope"], np.float64)
    real, imag = band_dims(queries.shape[1], queries.shape[1], str(params.get("pairing", "half")))
    band = queries[:, real] + 1j * queries[:, imag]
    if rotated:
        positions = np.array(inputs.get("positions", range(len(queries))), np.float64)
        band = band / float(params.get("attention_scaling", 1.0)) * np.exp(-1j * np.outer(positions, inputs["omega"]))
    center, length = band.mean(0), np.abs(band).mean(0)
    made = _statistics([center.real], [center.imag], [length], np.zeros(len(real)))
    return Found(
        {
            "q_pre_rope": _joined(band, real, imag),
            "q_center_real": center.real.tolist(),
            "q_center_imag": center.imag.tolist(),
            "q_abs_mean": length.tolist(),
            "resultant_length": made.resultant[0, 0].tolist(),
            "magnitude_coefficient": (length - np.abs(center)).tolist(),
        }
    )


def sample_z(scores: torch.Tensor) -> torch.Tensor:
    """z-scores [H, N] over all slots with the sample deviation; a deviation below 1e-8 counts as 1."""
    deviation = scores.std(1, correction=1, keepdim=True)
    return (scores - scores.mean(1, keepdim=True)) / torch.where(deviation < STD_FLOOR * 1e-2, 1.0, deviation)


def _details(rest: str) -> bool:
    """Whether the rest of a variant's name only says in which form a case asks for the same values."""
    return set(re.findall("[a-z0-9]+", rest)) <= _DETAILS


def _joined(band: Any, real: Any, imag: Any) -> list[list[float]]:
    rows = np.empty((len(band), 2 * len(real)))
    rows[:, real], rows[:, imag] = band.real, band.imag
    return rows.tolist()


def _statistics(real: Any, imag: Any, length: Any, omega: Any, kv_heads: int = 1, scaling: float = 1.0) -> Calibration:
    """Statistics of one layer: lists [H_q][D/2]."""
    center_real, center_imag, abs_mean = (np.array([value], np.float64) for value in (real, imag, length))
    size = 2 * abs_mean.shape[2]
    meta = Meta("", "", scaling, "half", kv_heads, size, size, tokens=1, corpus="")
    return Calibration(center_real, center_imag, abs_mean, np.array(omega, np.float64), meta)


def _event(case: Case) -> _Event:
    inputs, params = case["inputs"], case["params"]
    heads = [""] + [f"_{number}" for number in range(2, 100) if f"q_abs_mean_{number}" in inputs]
    real, imag, length = (
        [inputs[name + head] for head in heads] for name in ("q_center_real", "q_center_imag", "q_abs_mean")
    )
    before = torch.tensor(inputs["keys_pre_rope"], dtype=torch.float64)
    before = before if before.dim() == 3 else before[None]
    scaling = float(params.get("attention_scaling", 1.0))
    statistics = _statistics(real, imag, length, inputs["omega"], kv_heads=len(before), scaling=scaling)
    positions = torch.tensor(inputs.get("positions", range(before.shape[1])))
    after = _rotated(before, positions, statistics)
    if "keys_post_rope" in inputs:
        given = torch.tensor(inputs["keys_post_rope"], dtype=torch.float64).view_as(after)
        if (given - after).abs().max() > _ROUNDED:
            raise ValueError("keys_post_rope are not keys_pre_rope turned to their positions")
    return _Event(statistics, before, after, positions, int(inputs["t"]))


def _rotated(keys: torch.Tensor, positions: torch.Tensor, statistics: Calibration) -> torch.Tensor:
    real, imag = statistics.bands()
    angle = positions.double()[:, None] * torch.from_numpy(statistics.frequencies)
    turned = torch.complex(keys[..., real], keys[..., imag]) * torch.polar(torch.ones_like(angle), angle)
    result = torch.empty_like(keys)
    result[..., real], result[..., imag] = turned.real, turned.imag
    return result * statistics.meta.attention_scaling


def _policy(case: Case, normalize: bool = True) -> TriAttention:
    params, variant = case["params"], str(case["variant"])
    return _Listed(
        per_layer=True,
        normalize=bool(params.get("normalize", params.get("normalize_scores", normalize))),
        aggregation=str(params.get("aggregation", "max" if variant.endswith("max") else "mean")),
        disable_trig=variant == "disable_trig" or bool(params.get("disable_trig")),
        disable_mlr=variant == "disable_mlr" or bool(params.get("disable_mlr")),
        listed=tuple(case["inputs"]["offsets"]),
    )


def _kv_heads(case: Case, query_heads: int) -> int:
    params = case["params"]
    if "H_kv" in params:
        return int(params["H_kv"])
    return query_heads // int(params.get("group", 2))


def _depth(rows: Any) -> int:
    return 1 + _depth(rows[0]) if isinstance(rows, list) and rows else 0


def _top(scores: torch.Tensor, count: int) -> list[list[int]]:
    return rank(scores)[:, :count].sort(-1).values.tolist()


def _margins(scores: torch.Tensor, count: int) -> list[float | None]:
    return [cases.margin(row, count) for row in scores]


_DETAILS = frozenset(
    ("full", "gap", "gapped", "gaps", "group", "head", "hf", "layer", "max", "mean", "order", "per", "perhead", "post",
     "pre", "prompt", "recent", "rope", "single", "spec")
)  # fmt: skip
_VARIANTS: Mapping[str, Callable[[Case], Found]] = {
    "score": _score,
    "max": _score,
    "disable_trig": _score,
    "disable_mlr": _score,
    "hf": _spec,
    "spec": _spec,
    "vllm": _vllm,
    "aggregation": _aggregation,
    "ports": _ports,
    "offset_mean": _offset_mean,
    "calibration": _calibration,
}
