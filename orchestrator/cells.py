"""Cells: the points of a job's grid, and the identity that names them (contracts.md section 4).

A cell holds what changes a generation's distribution and nothing else. Sample count, limit, concurrency, hardware and
versions are execution or provenance: growing a job or moving it to other machines never renames a cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any

from policies import registry
from policies.budget import Budget, Overflow, Protection

_NONE = object()
_FINGERPRINT = 16  # hex digits


@dataclass(frozen=True, slots=True)
class ModelRef:
    """path as the job has it (`embedded:reasoner`, a directory, a hub id); revision = hub commit or content hash."""

    path: str
    revision: str
    dtype: str
    max_model_len: int


@dataclass(frozen=True, slots=True)
class TaskRef:
    """revision pins the data, prompt_hash pins the template with which every problem is rendered."""

    name: str
    version: int
    revision: str
    prompt_hash: str


@dataclass(frozen=True, slots=True)
class PolicyRef:
    """A policy with resolved parameters; `source` is the content hash of a user's file, empty for built-ins."""

    name: str
    version: int
    params: Mapping[str, Any]
    source: str = ""


@dataclass(frozen=True, slots=True)
class SamplingRef:
    """Sampling as the model sees it; max_tokens counts generated tokens."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm on one model and task. `budget`, `protection`, `overflow` are None for `full`, which never evicts."""

    model: ModelRef
    task: TaskRef
    policy: PolicyRef
    budget: Budget | None
    protection: Protection | None
    n_sink: int | None
    overflow: Overflow | None
    sampling: SamplingRef
    protocol: str
    sample_base_seed: int
    eviction_base_seed: int

    def identity(self) -> dict[str, Any]:
        """JSON-ready identity: every field, since everything here is identity (style rule 1)."""
        return asdict(self)

    @property
    def cell_id(self) -> str:
        """16 hex digits of BLAKE2b over the canonical JSON of the identity."""
        return fingerprint(self.identity())

    @property
    def label(self) -> str:
        """Readable name beside the id: `reasoner reasoner_w random K264 r16 prompt`."""
        return " ".join([self.model.path.rsplit("/", 1)[-1].removeprefix("embedded:"), self.task.name, self.arm_label])

    @property
    def arm_label(self) -> str:
        """The label without model and task; what is unusual follows: `snapkv(window=16) K264 r16 prompt recent0`."""
        usual = _defaults(self.policy.name)
        unusual = [(name, value) for name, value in self.policy.params.items() if usual.get(name, _NONE) != value]
        params = ",".join(f"{name}={_short(value)}" for name, value in sorted(unusual))
        parts = [f"{self.policy.name}({params})" if params else self.policy.name]
        if self.budget is not None and self.protection is not None:
            parts += [f"K{self.budget.keep}", f"r{self.budget.interval}", self.protection.value]
            if self.budget.recent != self.budget.interval:
                parts.append(f"recent{self.budget.recent}")
            if self.overflow not in (None, Overflow.GROW):
                parts.append(f"overflow={self.overflow.value}")
        return " ".join(parts)


@cache
def _defaults(policy: str) -> Mapping[str, Any]:
    """Default parameters of a policy that goes by name; a user's file says nothing once it has changed."""
    if ":" in policy:
        return {}
    try:
        return {field.name: field.default for field in fields(registry.get(policy))}
    except registry.PolicyError:
        return {}


def _short(value: object) -> str:
    """A fingerprint by its first digits."""
    text = str(value)
    return text if len(text) < _FINGERPRINT else text[: _FINGERPRINT // 2]


def canonical_json(value: object) -> str:
    """One text per value: sorted keys, no spaces; floats as Python writes them; NaN is refused with ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def fingerprint(value: object, digest_size: int = 8) -> str:
    """Hex BLAKE2b of the canonical JSON."""
    return hashlib.blake2b(canonical_json(value).encode(), digest_size=digest_size).hexdigest()
