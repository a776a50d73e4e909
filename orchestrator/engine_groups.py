"""Which cells share an engine process, and what that engine must offer (EngineKey, contracts.md section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from orchestrator.arms import Arm
from orchestrator.resources import LoadedModel
from orchestrator.spec import JobSpec
from policies.base import Needs
from workers.api import EngineSpec

# These cost every request of an engine memory or time, so only cells that need the same ones share it;
# positions, order and all_layers cost nothing unless a policy uses them.
_COSTLY = ("recent_queries", "attention", "calibration", "hidden_states", "token_ids", "slot_state")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A cell as an engine sees it; `lengths` are prompt tokens of every row."""

    model: LoadedModel
    arm: Arm
    lengths: tuple[int, ...]


def engine_specs(job: JobSpec, tenants: Mapping[str, Tenant]) -> dict[str, EngineSpec]:
    """Cell id -> the engine that runs it. `full` gets stock engines of its own (keep_ceiling 0)."""
    groups: dict[object, list[str]] = {}
    for cell_id, tenant in tenants.items():
        groups.setdefault(_key(tenant), []).append(cell_id)
    return {
        cell_id: spec
        for members in groups.values()
        for spec in [_spec(job, [tenants[member] for member in members])]
        for cell_id in members
    }


def _key(tenant: Tenant) -> object:
    needs = tenant.arm.policy.needs
    costly = tuple(
        bool(value) if name == "recent_queries" else value for name in _COSTLY for value in [getattr(needs, name)]
    )
    interval = tenant.arm.rule.budget.interval if tenant.arm.rule else 0
    return tenant.model.ref, interval, costly


def _spec(job: JobSpec, tenants: Sequence[Tenant]) -> EngineSpec:
    model, section = tenants[0].model, job.engine
    rule = tenants[0].arm.rule
    return EngineSpec(
        kind=section.kind,
        model=str(model.resolved.path_on_disk),
        revision=model.ref.revision,
        dtype=model.ref.dtype,
        max_model_len=model.ref.max_model_len,
        max_prompt_tokens=max(max(tenant.lengths) for tenant in tenants),
        keep_ceiling=max(tenant.arm.rule.kept(max(tenant.lengths)) if tenant.arm.rule else 0 for tenant in tenants),
        interval=rule.budget.interval if rule else 0,
        needs=_union([tenant.arm.policy.needs for tenant in tenants]),
        tp=job.resources.tp,
        pp=job.resources.pp,
        max_num_seqs=section.max_num_seqs,
        block_size=section.block_size,
        pool_blocks=section.pool_blocks,
        enforce_eager=section.enforce_eager,
    )


def _union(needs: Sequence[Needs]) -> tuple[tuple[str, Any], ...]:
    """Needs that any tenant has, with the largest value, sorted by name; text needs are equal within a group."""
    merged = {field.name: max(getattr(need, field.name) for need in needs) for field in fields(Needs)}
    return tuple(sorted((name, value) for name, value in merged.items() if value))
