"""Arms: policies with settled budgets, protection and overflow; the policy axes of a job's grid, multiplied out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

from orchestrator.cells import PolicyRef
from orchestrator.spec import JobSpec
from orchestrator.spec_checks import arm_entries
from orchestrator.spec_sections import ArmSpec, ArmsSpec
from orchestrator.yaml_source import Loc
from policies import registry
from policies.base import Policy
from policies.budget import Budget, Overflow, Protection, effective_keep, protected_tokens, resolve

T = TypeVar("T")

# StreamingLLM is the recent window with sinks; sinks come from the protection, so either name may mean the other.
_WINDOWS = {
    ("streaming_llm", Protection.PROMPT): "recent",
    ("streaming_llm", Protection.NONE): "recent",
    ("recent", Protection.SINKS): "streaming_llm",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """How an arm evicts, apart from the policy's scores; lengths in tokens per KV head."""

    budget: Budget
    protection: Protection
    n_sink: int
    overflow: Overflow

    def protected(self, prompt: int) -> int:
        """prot of a prompt length."""
        return protected_tokens(self.protection, prompt, self.n_sink)

    def kept(self, prompt: int) -> int:
        """K' of a prompt length."""
        return effective_keep(self.budget, prompt, self.protected(prompt), self.overflow)


@dataclass(frozen=True, slots=True)
class Arm:
    """One policy at one budget, before model and task are chosen. The rule is None for `full`.

    budget_loc  key path of its keep, for error messages
    name, keep  as written in the job, for exclude and for messages; the rule holds the resolved pair
    reference   what policies.registry.build takes in an engine process
    """

    budget_loc: Loc
    name: str
    keep: int | None
    policy: Policy
    reference: str
    rule: Rule | None = None

    @property
    def ref(self) -> PolicyRef:
        """The policy as identity sees it: a user's class by file name and content, wherever the file lies."""
        file, _, attribute = self.reference.rpartition(":")
        if not file:
            return PolicyRef(self.policy.name, self.policy.version, self.policy.params())
        source = hashlib.blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
        return PolicyRef(f"{Path(file).name}:{attribute}", self.policy.version, self.policy.params(), source)

    @property
    def title(self) -> str:
        """`random K264 r16 prompt`."""
        if self.rule is None:
            return self.policy.name
        budget = self.rule.budget
        return f"{self.policy.name} K{budget.keep} r{budget.interval} {self.rule.protection.value}"


def grid_arms(job: JobSpec) -> list[Arm]:
    """Arms of the product of policies, keeps, intervals and protections, in the order of the file."""
    return [arm for loc, entry in arm_entries(job) if loc[0] == "arms" for arm in points(entry, job.arms, loc)]


def points(entry: ArmSpec, common: ArmsSpec, loc: Loc) -> Iterator[Arm]:
    """The arms of one entry; its own settings override the common ones."""
    if not entry.policy.evicts:
        yield Arm(loc, entry.name, None, entry.policy, entry.reference)
        return
    mode = _either(entry.budget_mode, common.budget_mode)
    overflow = _either(entry.overflow, common.overflow)
    n_sink = _either(entry.n_sink, common.n_sink)
    budget_loc: Loc = (*loc, "keep") if entry.keep else ("arms", "keep")
    axes = (
        entry.keep or common.keep or (),
        _either(entry.interval, common.interval),
        _either(entry.protection, common.protection),
    )
    for keep, interval, protection in product(*axes):
        sinks = 0 if protection is Protection.NONE else n_sink
        rule = Rule(resolve(keep, interval, mode), protection, sinks, overflow)
        yield Arm(budget_loc, entry.name, keep, entry.policy, entry.reference, rule)


def canonical(arm: Arm) -> Arm:
    """The arm that an arm equals by definition (contracts.md section 2), so that the same rows are made once."""
    name = _WINDOWS.get((arm.policy.name, arm.rule.protection)) if arm.rule else None
    return replace(arm, policy=registry.build(name, {}), reference=name) if name else arm


def _either(own: T | None, common: T) -> T:
    return common if own is None else own
