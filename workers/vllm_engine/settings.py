"""What the plugin is told: per engine in additional_config, per request in extra_args (contracts.md section 3).

Standard library only: the scheduler process, every worker and the engine's caller read settings through this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from policies import budget
from policies.base import Needs
from policies.budget import Budget, Overflow, Protection, effective_keep
from workers.api import Eviction
from workers.vllm_engine.physical import Lengths, event_lengths, in_place_lengths, reserved_tokens

KEY = "evictbench"
"""The plugin's key in additional_config and in SamplingParams.extra_args; the plugin is inert without it."""

FORMAT_VERSION = 1

NOTHING = Needs()
"""What engines record unless asked."""

_T = TypeVar("_T", Protection, Overflow)


class SettingsError(ValueError):
    """Settings that cannot be followed; the message names value, choices and next step."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Engine-wide: decides the blocks a request reserves, and what is recorded for policies.

    keep_ceiling, interval, max_prompt_tokens  tokens, see workers.api.EngineSpec
    needs        what policies of this engine may ask for
    calibration  file of statistics where needs.calibration asks for them
    default      JSON text of the entry that requests without one follow; empty: they do not evict
    """

    keep_ceiling: int
    interval: int
    max_prompt_tokens: int
    needs: Needs = NOTHING
    calibration: str = ""
    default: str = ""

    @classmethod
    def from_additional_config(cls, config: object) -> EngineSettings | None:
        """The settings in vLLM's additional_config, None when the key is absent. Raises SettingsError."""
        raw = config.get(KEY) if isinstance(config, Mapping) else None
        if raw is None:
            return None
        place = f"additional_config[{KEY!r}]"
        _refuse_unknown(raw, tuple(f.name for f in fields(cls)), place)
        sizes = {name: raw.get(name) for name in ("keep_ceiling", "interval", "max_prompt_tokens")}
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SettingsError(f"{place}[{name!r}] must be a positive integer, got {value!r}")
        needs = _needs(raw.get("needs") or {}, f"{place}['needs']")
        default = entry_of({KEY: raw["default"]}) if raw.get("default") else None
        if default is not None:
            from_extra_args({KEY: {"seed": 0, **default}})
        text = json.dumps(default) if default is not None else ""
        return cls(**sizes, needs=needs, calibration=str(raw.get("calibration", "")), default=text)

    def as_config(self) -> dict[str, Any]:
        """What from_additional_config reads back; defaults are left out."""
        sizes = {name: getattr(self, name) for name in ("keep_ceiling", "interval", "max_prompt_tokens")}
        optional = {
            "needs": {name: value for name, value in asdict(self.needs).items() if value},
            "calibration": self.calibration,
            "default": self.default,
        }
        return sizes | {key: value for key, value in optional.items() if value}

    @property
    def capacity(self) -> int:
        """Most tokens per head that any request of this engine holds."""
        return reserved_tokens(self.keep_ceiling, self.interval, self.max_prompt_tokens)

    def request_blocks(self, admitted: int, block_size: int, max_model_len: int) -> int:
        """Blocks that a request with `admitted` tokens may come to hold."""
        return -(-min(reserved_tokens(self.keep_ceiling, self.interval, admitted), max_model_len) // block_size)

    def check_pool(self, blocks: int, block_size: int, max_model_len: int) -> None:
        """Raises SettingsError when `blocks` usable blocks cannot hold the largest request: it would wait for ever."""
        need = self.request_blocks(self.max_prompt_tokens, block_size, max_model_len)
        if need > blocks:
            raise SettingsError(
                f"one request of {self.max_prompt_tokens} prompt tokens with keep {self.keep_ceiling} and interval "
                f"{self.interval} needs {need} blocks of {block_size} tokens, the pool has {blocks}: raise the pool or "
                "lower keep, interval or the prompt length"
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """One request's eviction, resolved against its prompt.

    prot      protected prefix in tokens
    lengths   the length algebra
    overflow  True when K' > the keep that was asked for
    """

    prot: int
    lengths: Lengths
    overflow: bool


def to_extra_args(eviction: Eviction) -> dict[str, dict[str, Any]]:
    """extra_args of a request that evicts."""
    return {
        KEY: {
            "v": FORMAT_VERSION,
            "policy": eviction.policy,
            "params": dict(eviction.params),
            "keep": eviction.keep,
            "recent": eviction.recent,
            "protection": str(eviction.protection),
            "n_sink": eviction.n_sink,
            "seed": eviction.seed,
            "overflow": str(eviction.overflow),
        }
    }


def entry_of(extra_args: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Our entry, None when there is none; a JSON string is read too. Raises SettingsError for anything else."""
    raw = (extra_args or {}).get(KEY)
    if raw is None:
        return None
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except json.JSONDecodeError as error:
            raise SettingsError(f"{KEY} is not JSON: {error}") from None
    if not isinstance(raw, Mapping):
        raise SettingsError(f"{KEY} must be an object, got {type(raw).__name__}")
    return raw


def from_extra_args(extra_args: Mapping[str, Any] | None) -> Eviction | None:
    """The request's eviction, None when it has no entry. Raises SettingsError."""
    raw = entry_of(extra_args)
    if raw is None:
        return None
    _refuse_unknown(raw, ("v", *(f.name for f in fields(Eviction))), KEY)
    if raw.get("v") != FORMAT_VERSION:
        raise SettingsError(f"{KEY}.v must be {FORMAT_VERSION}, got {raw.get('v')!r}")
    missing = [name for name in ("policy", "keep", "recent", "protection", "seed") if name not in raw]
    if missing:
        raise SettingsError(f"{KEY} lacks {', '.join(missing)}")
    return Eviction(
        policy=str(raw["policy"]),
        params=dict(raw.get("params") or {}),
        keep=_count(raw, "keep", 1),
        recent=_count(raw, "recent", 0),
        protection=_choice(Protection, raw["protection"], "protection"),
        n_sink=_count(raw, "n_sink", 0) if "n_sink" in raw else 0,
        seed=_count(raw, "seed", 0) & (2**64 - 1),
        overflow=_choice(Overflow, raw.get("overflow", Overflow.GROW), "overflow"),
    )


def protected_prefix(eviction: Eviction, prompt: int) -> int:
    """`prot` in tokens after the overflow rule (contracts.md section 1)."""
    rule = Budget(eviction.keep, eviction.recent, eviction.recent)
    return budget.protected_prefix(rule, eviction.protection, prompt, eviction.n_sink, eviction.overflow)


def resolve(eviction: Eviction, prompt: int, admitted: int, interval: int, *, in_place: bool) -> Schedule:
    """Schedule of a request with `prompt` and `admitted` tokens (equal unless it resumes). Raises SettingsError."""
    if eviction.recent > interval:
        raise SettingsError(f"recent {eviction.recent} exceeds the engine's interval {interval}")
    prot = protected_prefix(eviction, prompt)
    keep = effective_keep(Budget(eviction.keep, interval, eviction.recent), prompt, prot, eviction.overflow)
    room = keep - prot - (interval if in_place else eviction.recent)
    if room < 0:
        what = f"interval {interval}" if in_place else f"recent {eviction.recent}"
        raise SettingsError(
            f"prompt of {prompt} tokens does not fit: {prot} protected and {what} exceed keep {keep} "
            f"under overflow {eviction.overflow}; raise keep or choose overflow grow"
        )
    build = in_place_lengths if in_place else event_lengths
    return Schedule(prot, build(keep, interval, admitted), keep > eviction.keep)


def _needs(raw: Mapping[str, Any], place: str) -> Needs:
    known = asdict(Needs())
    _refuse_unknown(raw, tuple(known), place)
    for name, value in raw.items():
        if type(value) is not type(known[name]):
            raise SettingsError(f"{place}[{name!r}] must be of type {type(known[name]).__name__}, got {value!r}")
    return Needs(**raw)


def _refuse_unknown(raw: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for name in raw:
        if name not in known:
            close = get_close_matches(str(name), known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise SettingsError(f"{place} has unknown key {name!r}; known: {', '.join(known)}{hint}")


def _count(raw: Mapping[str, Any], name: str, least: int) -> int:
    value = raw[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingsError(f"{KEY}.{name} must be an integer >= {least}, got {value!r}")
    return value


def _choice(kind: type[_T], value: object, name: str) -> _T:
    try:
        return kind(str(value))
    except ValueError:
        raise SettingsError(f"{KEY}.{name} must be one of {', '.join(kind)}, got {value!r}") from None
