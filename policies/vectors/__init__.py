"""Adapters of `evictbench verify policies`: each turns a case of a vector file into what this package computes for it.

Standard library only; the tensor code is reached by dotted name. A case names policy and variant; slots, kept sets and
margins of the file follow its own `conventions` (kept ascending, slots in chronological order, null = nothing is cut).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from policies.base import resolve_dotted
from policies.registry import get, names

Case = Mapping[str, Any]

FRAME = frozenset(
    ("K", "K_total", "n_select", "prompt_len", "protect_prompt", "n_sink", "recent", "window", "r", "interval",
     "H_q", "H_kv", "D", "dtype", "group", "block")
)  # fmt: skip
"""Params that say what is evicted and in what shape, not how it is scored."""
_OWN: Mapping[str, frozenset[str]] = {
    "schedules": frozenset(("budget", "token_budget", "divide_length", "residual")),
    "triattention": frozenset(
        ("attention_scaling", "pairing", "head_dim", "aggregation", "normalize", "normalize_scores", "disable_trig",
         "disable_mlr")
    ),
    "simple": frozenset(("N", "S", "n", "n_candidates")),
}  # fmt: skip
"""Further params, by the module of adapters that reads them; `scored` asks the policy itself."""
_CHECKED = "scored"

_ADAPTERS: Mapping[tuple[str, str], str] = {
    ("any", "budget_layout"): "frame:budget_layout",
    ("any", "prompt_longer_than_budget"): "frame:overflow",
    ("any", "ties"): "frame:given_scores",
    ("any", "nan"): "frame:given_scores",
    ("any", "inf*"): "frame:given_scores",
    ("any", "bf16"): "frame:bf16",
    ("any", "compaction"): "frame:compaction",
    ("any", "positions"): "frame:positions",
    ("any", "schedule"): "schedules:foreign",
    ("full", "-"): "simple:full",
    ("recent", "-"): "simple:window",
    ("recent", "two_events"): "simple:two_events",
    ("streamingllm", "-"): "simple:window",
    ("streamingllm", "two_events"): "simple:two_events",
    ("random", "per_head"): "simple:random",
    ("random", "shared"): "simple:random",
    ("random", "block"): "simple:random",
    ("random", "statistics"): "simple:statistics",
    ("h2o", "cumulative_group_sum"): "scored:h2o",
    ("h2o", "every_step"): "scored:h2o",
    ("snapkv", "vase_repo_decode"): "scored:snapkv",
    ("snapkv", "rkv_repo_decode"): "scored:snapkv_rkv",
    ("snapkv", "protect_prompt=override"): "scored:snapkv",
    ("snapkv", "protect_prompt=exclude"): "scored:snapkv",
    ("snapkv", "official_prefill"): "scored:snapkv_prefill",
    ("snapkv", "pooling_depends_on_slot_order"): "scored:pooling_order",
    ("rkv", "official_hf"): "scored:rkv_official",
    ("rkv", "vase_repo"): "scored:rkv",
    ("rkv", "protect_prompt=override"): "scored:rkv",
    ("rkv", "protect_prompt=exclude"): "scored:rkv_official",
    ("rkv", "vllm_port"): "scored:rkv_shared_set",
    ("vase", "range_sink_sample_attn"): "scored:vase",
    ("vase", "protect_prompt=override"): "scored:vase",
    ("vase", "degenerate"): "scored:vase",
    ("vase", "paper"): "scored:vase_paper",
    ("triattention", "*"): "triattention:run",
}


@dataclass(frozen=True)
class Found:
    """What a case's expected values are compared with.

    values     by the names that the file uses, nested lists and numbers
    reference  computed by a plain function that follows a foreign implementation, not by a registered policy
    """

    values: Mapping[str, Any]
    reference: bool = False


def adapter(policy: str, variant: str) -> Callable[[Case], Found]:
    """The function for a case. Raises LookupError, naming the known variants, when there is none."""
    return resolve_dotted(f"{__name__}.{_adapter_name(policy, variant)}")


def check_params(case: Case) -> None:
    """Raises ValueError for a parameter that cases of no kind have, LookupError as `adapter` does.

    What another kind reads may stand in a case as a remark; what it should change shows in the numbers.
    """
    module = _adapter_name(str(case["policy"]), str(case["variant"])).partition(":")[0]
    scored = {field.name for name in names() for field in fields(get(name))}
    known = FRAME.union(*_OWN.values(), scored, ("kernel", "pool", "lambda", "lam"))
    unknown = sorted(case["params"].keys() - known)
    if unknown and module != _CHECKED:
        raise ValueError(f"no parameter '{unknown[0]}' in cases of any kind; parameters: {', '.join(sorted(known))}")


def _adapter_name(policy: str, variant: str) -> str:
    fitting = [
        name for (owner, pattern), name in _ADAPTERS.items() if owner == policy and fnmatchcase(variant, pattern)
    ]
    if not fitting:
        known = [other for owner, other in _ADAPTERS if owner == policy]
        listed = f"variants of '{policy}': {', '.join(known)}" if known else f"policies: {', '.join(_policies())}"
        raise LookupError(f"no variant '{variant}' of policy '{policy}'; known {listed}")
    return fitting[0]


def _policies() -> list[str]:
    return sorted({policy for policy, _ in _ADAPTERS})
