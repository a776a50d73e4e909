"""Published numbers that are about a set-up rather than about the accuracy of an arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.replication.arms import ONE_ARM, SURVIVAL
from orchestrator.replication.columns import Status
from orchestrator.replication.names import METHODS, MODELS, TASKS, same_model
from orchestrator.replication.run import Cell, Run

Columns = dict[str, Any]
_SETUP = ("n_problems", "n_runs_per_problem", "mean_prompt_tokens", "max_tokens")
_SERVING = frozenset(
    (
        *("x_full", "output_tok_s", "gain_over_TriAttention_pct", "batch"),
        *("decode_tok_s", "latency_s", "ms_per_round", "pct_of_decode"),
        *("peak_GB", "max_batch", "max_batch_range", "x_full_range"),
        *("preemption_safe_max_num_seqs", "extra_wall_s_vs_RA", "step_ms_intercept", "step_ms_per_seq"),
        *("peak_GB_at_batch20", "memory_reduction_x", "compressions_per_workload", "eviction_events_events_8k"),
        *("eviction_events_events_32k", "eviction_events_events_32k_phi", "tok_s", "max_num_requests_waiting"),
        *("workload",),
    )
)
_PROBES = frozenset(
    (
        *("retrieval", "retrieval_at_R", "recall_R", "mean_logprob_value"),
        *("mean_value_logprob", "exact_match", "delta_nats", "distance_tokens"),
        *("eviction_rounds",),
    )
)


def found(row: Mapping[str, Any], run: Run) -> Columns | None:
    """Columns of a set-up number from any published model's cell on its task; None where there is none."""
    if row["metric"] not in _SETUP or row["value"] is None:
        return None
    cell = next((cell for cell in run.cells if _is_about(row, cell)), None)
    if cell is None:
        return None
    rows = run.rows(cell)
    estimate = {
        "n_problems": rows["problem_id"].nunique,
        "n_runs_per_problem": lambda: rows.groupby("problem_id")["sample"].nunique().max(),
        "mean_prompt_tokens": lambda: rows.groupby("problem_id")["n_prompt"].first().mean(),
        "max_tokens": lambda: cell["max_tokens"],
    }[row["metric"]]()
    inside = bool(abs(float(estimate) - row["value"]) <= row["rounding"])
    return {
        "estimate": float(estimate),
        "problems": rows["problem_id"].nunique(),
        "cell_id": cell["cell_id"],
        "inside": inside,
        "status": (Status.CONSISTENT if inside else Status.BY_DESIGN).value,
        "reason": "" if inside else "the job asks for another number",
    }


def why_not(row: Mapping[str, Any]) -> str:
    """Why a number that is about no arm has no counterpart."""
    metric = row["metric"]
    if row["value_low"] is None:
        return "words, no number"
    if metric in _SERVING:
        return "throughput and memory: needs the serving measurement on the published GPU"
    if metric in _PROBES:
        return "probe: evictbench probe jobs/paper/probes_qwen3_4b.yaml, then replicate --probes FOLDER"
    if metric in ONE_ARM and row["policy"] not in METHODS:
        return f"{row['policy'] or 'this method'} is no policy here"
    if metric in ("prompt_survival_per_head", "prompt_survival_union"):
        return "a range over four settings that the paper does not name"
    if metric in ("survival_union_age_1-2k", "slot_coverage", SURVIVAL):
        return "a store keeps ages per head, not their union, and no coverage by slot"
    if row["model"] and row["model"] not in MODELS:
        return "a summary over several models; see the numbers it sums up"
    return "a remark on other numbers; see those"


def _is_about(row: Mapping[str, Any], cell: Cell) -> bool:
    models = [row["model"]] if row["model"] in MODELS else list(MODELS)
    tasks = [TASKS[row["task"]].name] if row["task"] in TASKS else []
    return bool(
        cell["rows"]
        and any(same_model(model, str(cell["model"])) for model in models)
        and (cell["task"] in tasks or row["task"] == "all")
        and not str(cell["task_revision"]).startswith("mini-")
    )
