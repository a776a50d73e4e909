"""Values of one engine or grader turned into rows of the declared schemas."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from orchestrator.cells import Cell, canonical_json, fingerprint
from orchestrator.chunks import BLOCK, Row, Work
from orchestrator.store.paths import GraderKey
from orchestrator.store.schema import Status
from orchestrator.tasks.base import Grade
from workers.api import EvictionTrace, Generation, Provenance


def row_id(cell_id: str, problem_id: str, sample: int) -> str:
    """The key of a row everywhere. cell_id is hex and sample a number, so a `/` in problem_id is harmless."""
    return f"{cell_id}/{problem_id}/{sample}"


def comparison_id(cell: Cell) -> str:
    """What two arms must share to be paired: model, task, sampling and protocol, not policy, budget or seeds."""
    identity = cell.identity()
    return fingerprint({key: identity[key] for key in ("model", "task", "sampling", "protocol")})


def generation_row(
    cell: Cell,
    work: Work,
    row: Row,
    generation: Generation,
    provenance: Provenance,
    started_at: datetime,
    finished_at: datetime,
) -> dict[str, Any]:
    """One row of GENERATIONS. `started_at` and `finished_at` are aware datetimes.

    The row is `invalid` where eviction was asked for and the trace is missing or its events differ from the formula.
    Engines may report `git_revision` and `think_end_token_id` in provenance.extra; both may be absent.
    """
    sample = work.chunk.sample
    return {
        "row_id": row_id(cell.cell_id, row.problem_id, sample),
        "problem_id": row.problem_id,
        "problem_index": _problem_index(work, row),
        "sample": sample,
        "sample_seed": row.sample_seed,
        "eviction_seed": row.request.eviction.seed if row.request.eviction is not None else None,
        "attempt": work.attempt,
        "status": _status(row, generation.trace).value,
        "finish_reason": generation.finish_reason,
        "n_prompt": generation.n_prompt,
        "n_output": generation.n_output,
        "n_reasoning": _reasoning_tokens(generation, provenance),
        "text": generation.text,
        "prompt_sha256": row.prompt_sha256,
        "ttft_seconds": generation.ttft_seconds,
        "e2e_seconds": generation.e2e_seconds,
        "queue_seconds": generation.queue_seconds,
        "decode_tokens_per_second": generation.decode_tokens_per_second,
        "num_preemptions": generation.preemptions,
        "concurrency": generation.concurrency,
        "started_at": started_at,
        "finished_at": finished_at,
        **_cell_columns(cell),
        **_trace_columns(generation.trace),
        **_provenance_columns(provenance),
    }


def grade_row(generation: dict[str, Any], grader: GraderKey, grade: Grade, graded_at: datetime) -> dict[str, Any]:
    """One row of GRADES for a generation, given as any mapping that holds its key columns."""
    return {
        **{key: generation[key] for key in ("row_id", "cell_id", "problem_id", "sample")},
        "grader": grader.grader,
        "judge": grader.judge,
        "grader_version": grader.version,
        "verdict": grade.verdict.value,
        "lenient": None if grade.lenient is None else grade.lenient.value,
        "extracted": grade.extracted,
        "grade_method": grade.method,
        "grade_seconds": grade.seconds,
        "graded_at": graded_at,
    }


def plan_row(cell: Cell, n_problems: int, samples_min: int, samples_max: int, expected_tokens: float) -> dict[str, Any]:
    """One row of PLAN; expected_tokens is per generation."""
    return {
        "cell_id": cell.cell_id,
        "cell_label": cell.label,
        "comparison_id": comparison_id(cell),
        "identity": canonical_json(cell.identity()),
        "n_problems": n_problems,
        "samples_min": samples_min,
        "samples_max": samples_max,
        "expected_tokens": expected_tokens,
    }


def _problem_index(work: Work, row: Row) -> int:
    # Blocks are BLOCK consecutive problems; only the last block of a task may hold fewer.
    place = next(place for place, other in enumerate(work.rows) if other.problem_id == row.problem_id)
    return work.chunk.block * BLOCK + place


def _status(row: Row, trace: EvictionTrace | None) -> Status:
    if row.request.eviction is None or row.request.eviction.policy == "full":
        return Status.OK
    return Status.OK if trace is not None and trace.events == trace.expected_events else Status.INVALID


def _reasoning_tokens(generation: Generation, provenance: Provenance) -> int | None:
    end = provenance.extra.get("think_end_token_id")
    if end is None:
        return None
    return generation.token_ids.index(end) + 1 if end in generation.token_ids else generation.n_output


def _cell_columns(cell: Cell) -> dict[str, Any]:
    budget = cell.budget
    return {
        "cell_id": cell.cell_id,
        "cell_label": cell.label,
        "comparison_id": comparison_id(cell),
        "model": cell.model.path,
        "model_revision": cell.model.revision,
        "task": cell.task.name,
        "task_revision": cell.task.revision,
        "policy": cell.policy.name,
        "policy_version": cell.policy.version,
        "policy_params": canonical_json(dict(cell.policy.params)),
        "keep": budget.keep if budget is not None else None,
        "interval": budget.interval if budget is not None else None,
        "recent": budget.recent if budget is not None else None,
        "protection": cell.protection.value if cell.protection is not None else None,
        "n_sink": cell.n_sink,
        "overflow_mode": cell.overflow.value if cell.overflow is not None else None,
        "temperature": cell.sampling.temperature,
        "max_tokens": cell.sampling.max_tokens,
    }


def _trace_columns(trace: EvictionTrace | None) -> dict[str, Any]:
    return {field.name: getattr(trace, field.name) if trace is not None else None for field in fields(EvictionTrace)}


def _provenance_columns(provenance: Provenance) -> dict[str, Any]:
    return {
        "engine_id": provenance.engine_id,
        "engine_kind": provenance.kind,
        "gpu": provenance.device,
        "gpu_ids": ",".join(provenance.extra.get("gpus", ())) or None,
        "node": provenance.node,
        "runner": provenance.runner,
        "graph_mode": provenance.graph_mode,
        "versions": canonical_json(dict(provenance.versions)),
        "git_revision": str(provenance.extra.get("git_revision", "")),
    }
