"""Checks a request before a server takes it, so that a client reads what is wrong. Named by vLLM's --logits-processors.

vLLM asks logits processors to validate a request's parameters, and answers their complaint with status 400. This one
does nothing else. What depends on the engine's own settings is refused by the scheduler (scheduler.py).
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor

from policies.registry import build
from workers.vllm_engine.settings import KEY, entry_of, from_extra_args


class RequestCheck(LogitsProcessor):
    """Leaves all logits as they are."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises ValueError for an entry that no engine could follow: keys, values, policy or its parameters."""
        entry = entry_of(sampling_params.extra_args)
        eviction = from_extra_args(None if entry is None else {KEY: {"seed": 0, **entry}})
        if eviction is not None:
            build(eviction.policy, eviction.params)

    def __init__(self, *args: Any) -> None:
        del args

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits."""
        return logits

    def is_argmax_invariant(self) -> bool:
        """True: vLLM then skips it for greedy requests."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """Nothing to follow."""
