"""Per-request settings: extra_args["evictbench"], read alike by the scheduler side, the worker and the engine.

The value is a mapping, or the same as one JSON string (what `vllm_xargs` of the OpenAI server can carry).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from policies import registry
from policies.base import Policy, Replacer
from policies.budget import Budget, Overflow, Protection, effective_keep, protected_tokens
from workers.api import Eviction
from workers.errors import Fatal
from workers.vllm_engine.config import KEY, PluginConfig
from workers.vllm_engine.physical import Lengths

VERSION = 1
_NAMES = ("v", "policy", "params", "keep", "recent", "protection", "n_sink", "seed", "overflow")


def to_extra_args(eviction: Eviction) -> dict[str, Any]:
    """The mapping for SamplingParams.extra_args."""
    return {KEY: {"v": VERSION, **asdict(eviction), "params": dict(eviction.params)}}


def parse(extra_args: Mapping[str, Any] | None) -> Eviction | None:
    """Settings of a request, or None where it carries none. Raises Fatal: malformed, unknown or missing keys."""
    value = (extra_args or {}).get(KEY)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise Fatal(f'extra_args["{KEY}"] is not JSON: {error}.') from None
    if not isinstance(value, Mapping):
        raise Fatal(f'extra_args["{KEY}"] must be a mapping or its JSON text; got {value!r}.')
    unknown, missing = sorted(set(value) - set(_NAMES)), sorted(set(_NAMES[:-1]) - set(value))
    if unknown or missing or value["v"] != VERSION:
        raise Fatal(
            f'extra_args["{KEY}"]: unknown {unknown}, missing {missing}, version {value.get("v")}; '
            f"this engine reads version {VERSION} with the keys {list(_NAMES)}."
        )
    try:
        return Eviction(
            policy=value["policy"],
            params=dict(value["params"]),
            keep=value["keep"],
            recent=value["recent"],
            protection=Protection(value["protection"]),
            n_sink=value["n_sink"],
            seed=value["seed"],
            overflow=Overflow(value.get("overflow", Overflow.GROW)),
        )
    except (ValueError, TypeError) as error:
        raise Fatal(f'extra_args["{KEY}"]: {error}.') from None


@dataclass(frozen=True, slots=True)
class Plan:
    """One request's eviction, resolved: everything events and in-place writes need to know.

    prot, recent, n_select  tokens per KV head kept by protection, by recency, and by score at an event
    overflow                True when K' > the keep that was asked for
    """

    policy: Policy
    lengths: Lengths
    prompt: int
    prot: int
    recent: int
    n_select: int
    seed: int
    overflow: bool


def plan(eviction: Eviction, prompt: int, admitted: int, config: PluginConfig) -> Plan | None:
    """Resolve a request's settings; None when its policy never evicts.

    Raises Fatal: unknown policy or parameter, keep above the engine's ceiling, budgets that leave nothing to select,
    in-place requests whose prompt does not fit.
    """
    try:
        policy = registry.build(eviction.policy, eviction.params)
    except registry.PolicyError as error:
        raise Fatal(str(error)) from None
    if not policy.evicts:
        return None
    if not 0 < eviction.keep <= config.keep:
        raise Fatal(f"keep {eviction.keep} is outside this engine's 1..{config.keep}.")
    if not 0 <= eviction.recent <= config.interval:
        raise Fatal(f"recent {eviction.recent} is outside 0..{config.interval}, the engine's interval.")
    prot = protected_tokens(eviction.protection, prompt, eviction.n_sink)
    if eviction.overflow is Overflow.PUBLISHED:
        prot = min(prot, eviction.keep - eviction.recent - 1)
    budget = Budget(eviction.keep, config.interval, eviction.recent)
    keep = effective_keep(budget, prompt, prot, eviction.overflow)
    lengths = Lengths(keep, config.interval, admitted, isinstance(policy, Replacer))
    if keep < prot + eviction.recent:
        raise Fatal(
            f"keep {keep} cannot hold {prot} protected and {eviction.recent} recent tokens (overflow: {eviction.overflow})."
        )
    if lengths.in_place and keep - prot < config.interval:
        raise Fatal(
            f"{policy.name} needs keep - protected >= interval: {keep} - {prot} < {config.interval}. Raise keep."
        )
    return Plan(
        policy, lengths, prompt, prot, eviction.recent, keep - prot - eviction.recent, eviction.seed, keep > eviction.keep
    )


def protected_prefix(request: Any) -> int:
    """Tokens of a vLLM scheduler request that no event can overwrite: what its prefix-cache blocks may cover.

    A request without settings in an evicting engine never evicts, so its whole prompt is safe.
    """
    eviction = parse(request.sampling_params.extra_args if request.sampling_params else None)
    prompt = int(request.num_prompt_tokens)
    if eviction is None:
        return prompt
    prot = protected_tokens(eviction.protection, prompt, eviction.n_sink)
    if eviction.overflow is Overflow.PUBLISHED:
        prot = min(prot, eviction.keep - eviction.recent - 1)
    return min(prompt, prot)
