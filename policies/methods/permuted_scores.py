"""A null for scored policies: another policy's scores, shuffled among tokens of about the same age."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from policies import registry
from policies.base import Needs, Scorer
from policies.registry import register

if TYPE_CHECKING:
    import torch

    from policies.view import CacheView


@register
@dataclass(frozen=True)
class PermutedScores(Scorer):
    """The scores of `policy`, permuted within log2 bins of age, head by head and event by event.

    Every head keeps as many tokens of each age as the policy would, but not the ones it chose.

    policy   a policy's name or `file.py:Class`
    params_json  its parameters
    source   content hash of the file (source_of), so that another content is another cell; empty for names

    Raises ValueError for a policy that cannot be built, one without scores, and a file whose content is another.
    """

    name: ClassVar[str] = "permuted_scores"
    scorer: ClassVar[str] = "policies.scoring.nulls:permuted"
    example: ClassVar[Mapping[str, Any]] = {"policy": "snapkv"}

    policy: str
    params_json: str = "{}"
    source: str = ""

    def __post_init__(self) -> None:
        if source_of(self.policy) != self.source:
            found = source_of(self.policy)
            raise ValueError(f"source is '{self.source}', but the content of {self.policy} has '{found}'.")
        # Building it tells all mistakes at once.
        _ = self.inner

    @property
    def inner(self) -> Scorer:
        """The policy whose scores are permuted."""
        built = registry.build(self.policy, json.loads(self.params_json))
        if not isinstance(built, Scorer):
            raise ValueError(f"policy '{self.policy}' gives no scores that could be permuted.")
        return built

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """What the policy needs, and positions."""
        inner = self.inner.needs
        return Needs(**{**{name: getattr(inner, name) for name in Needs.__slots__}, "positions": True})

    @property
    def slot_order(self) -> str:
        """The policy's own."""
        return self.inner.slot_order

    def observe(self, view: CacheView) -> torch.Tensor:
        """The policy's own."""
        return self.inner.observe(view)


def source_of(policy: str) -> str:
    """Content hash of the file of `file.py:Class`, empty for a name."""
    file, _, _ = policy.rpartition(":")
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest() if file and Path(file).is_file() else ""
