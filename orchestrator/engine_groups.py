"""Which cells share an engine process, and what that engine must offer (EngineKey, contracts.md section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from orchestrator import calibrations
from orchestrator.arms import Arm
from orchestrator.resources import LoadedModel
from orchestrator.spec import JobSpec
from policies.base import Needs
from workers.api import EngineSpec

# Every engine that evicts keeps positions and can keep order, so only the other needs are asked of an engine. They cost
# all its requests memory or time, and an engine may refuse them: cells share one only if they need the same.
_EVERYWHERE = ("positions", "order")
_ASKED = tuple(field.name for field in fields(Needs) if field.name not in _EVERYWHERE)


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
    # A longer query window serves the shorter one.
    asked = replace(needs, recent_queries=min(needs.recent_queries, 1))
    interval = tenant.arm.rule.budget.interval if tenant.arm.rule else 0
    calibration = tenant.arm.policy.params().get(calibrations.PARAMETER) if needs.calibration else None
    return tenant.model.ref, interval, calibration, tuple(getattr(asked, name) for name in _ASKED)


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
        nodes=job.resources.nodes,
        max_num_seqs=section.max_num_seqs,
        block_size=section.block_size,
        pool_blocks=section.pool_blocks,
        enforce_eager=section.enforce_eager,
        calibration=str(calibrations.file_of(job, model)) if tenants[0].arm.policy.needs.calibration else "",
    )


def _union(needs: Sequence[Needs]) -> tuple[tuple[str, Any], ...]:
    """What the tenants ask of their engine, sorted by name; only the query window may differ, the longest counts."""
    merged = {name: max(getattr(need, name) for need in needs) for name in _ASKED}
    return tuple(sorted((name, value) for name, value in merged.items() if value))
