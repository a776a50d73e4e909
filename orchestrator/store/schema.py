"""The store's tables, declared: types, units and meaning per column; nothing is ever inferred from data.

Within one SCHEMA_VERSION only nullable columns may be added. A renamed or retyped column, another BLOCK or another
directory layout is a new version (contracts.md section 4). Stores of READABLE versions are read as they are; rows are
added to stores of SCHEMA_VERSION only, and `evictbench migrate` brings an older store there (migration.py).
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa

from orchestrator.chunks import BLOCK

SCHEMA_VERSION = 2
READABLE = frozenset({1, SCHEMA_VERSION})
"""Version 1 may lack the nullable columns lenient, nan_scores and gpu_ids in files from before they were added."""

# Large or rarely read: never copied into the reader's memory, fetched from the files that hold them when asked for.
COLD = frozenset({"text", "age_histogram", "versions"})


class Status(StrEnum):
    """Whether a generation may be counted."""

    OK = "ok"
    INVALID = "invalid"  # attestation failed: the measured number of events differs from the formula


_TIME = pa.timestamp("us", tz="UTC")


def _table(name: str, *columns: pa.Field) -> pa.Schema:
    metadata = {"table": name, "schema_version": str(SCHEMA_VERSION), "block": str(BLOCK)}
    return pa.schema(columns, metadata=metadata)


def _required(name: str, kind: pa.DataType, meaning: str, unit: str = "") -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"meaning": meaning, "unit": unit})


def _optional(name: str, kind: pa.DataType, meaning: str, unit: str = "") -> pa.Field:
    return pa.field(name, kind, nullable=True, metadata={"meaning": meaning, "unit": unit})


_FULL = "; null for full, which never evicts"

GENERATIONS = _table(
    "generations",
    _required("row_id", pa.string(), "cell_id/problem_id/sample, the key of a row everywhere"),
    _required("cell_id", pa.string(), "16 hex digits naming the cell's identity"),
    _required("cell_label", pa.string(), "readable name of the cell"),
    _required("comparison_id", pa.string(), "fingerprint of model, task, sampling and protocol: arms pair only within"),
    _required("model", pa.string(), "model as the job names it"),
    _required("model_revision", pa.string(), "hub commit or content hash of the model"),
    _required("task", pa.string(), "task name"),
    _required("task_revision", pa.string(), "pinned revision of the task's data"),
    _required("problem_id", pa.string(), "problem of the task"),
    _required("problem_index", pa.int32(), "place of the problem in the task's pinned order, from 0"),
    _required("sample", pa.int32(), "sample index, from 0"),
    _required("policy", pa.string(), "registered name of the policy"),
    _required("policy_version", pa.int32(), "version of the policy's code"),
    _required("policy_params", pa.string(), "resolved parameters, canonical JSON"),
    _optional("keep", pa.int32(), "cached KV pairs per head right after an event" + _FULL, "tokens"),
    _optional("interval", pa.int32(), "decoded tokens between events" + _FULL, "tokens"),
    _optional("recent", pa.int32(), "newest tokens that are never candidates" + _FULL, "tokens"),
    _optional("protection", pa.string(), "first tokens that are never candidates: prompt, sinks or none" + _FULL),
    _optional("n_sink", pa.int32(), "protected first tokens under sinks" + _FULL, "tokens"),
    _optional(
        "overflow_mode", pa.string(), "rule when the prompt does not fit: grow, per_arm, published or refuse" + _FULL
    ),
    _required("temperature", pa.float64(), "sampling temperature; 0 is greedy"),
    _required("max_tokens", pa.int32(), "limit of generated tokens", "tokens"),
    _required("sample_seed", pa.uint64(), "seed of the sampler; the same in every arm"),
    _optional("eviction_seed", pa.uint64(), "seed of the policy's draws; the same in every arm" + _FULL),
    _required("attempt", pa.int32(), "attempt of the chunk that committed, from 0"),
    _required("status", pa.string(), "ok, or invalid where attestation failed"),
    _required("finish_reason", pa.string(), "stop or length, as the engine names it"),
    _required("n_prompt", pa.int32(), "prompt length", "tokens"),
    _required("n_output", pa.int32(), "generated length", "tokens"),
    _optional(
        "n_reasoning", pa.int32(), "generated tokens up to the end-of-thinking tag; null when not counted", "tokens"
    ),
    _required("text", pa.string(), "generated text"),
    _required("prompt_sha256", pa.string(), "hash of the rendered prompt"),
    _required("ttft_seconds", pa.float64(), "time to the first token, queue included", "s"),
    _required("e2e_seconds", pa.float64(), "time from submission to the last token", "s"),
    _required("queue_seconds", pa.float64(), "time before the first prefill", "s"),
    _required("decode_tokens_per_second", pa.float64(), "decode rate of this request", "tokens/s"),
    _required("num_preemptions", pa.int32(), "times the engine preempted the request"),
    _optional("events", pa.int64(), "evictions measured (in-place mode: overwritten tokens)" + _FULL),
    _optional("expected_events", pa.int64(), "evictions by the length formula; equal to events in an ok row" + _FULL),
    _optional("prompt_kept_min", pa.float64(), "share of prompt tokens cached at the end, least layer x head" + _FULL),
    _optional(
        "prompt_kept_mean", pa.float64(), "share of prompt tokens cached at the end, mean over layers x heads" + _FULL
    ),
    _optional("cached_peak", pa.int32(), "most cached tokens per head over the decode" + _FULL, "tokens"),
    _optional("cached_mean", pa.float64(), "mean cached tokens per head over the decode" + _FULL, "tokens"),
    _optional("overflow", pa.bool_(), "the prompt did not fit into keep" + _FULL),
    _optional(
        "age_histogram", pa.list_(pa.int64()), "slots cached at the end per log2 bin of age in tokens" + _FULL, "slots"
    ),
    _optional("union_alive", pa.int32(), "tokens held by at least one head at the end" + _FULL, "tokens"),
    _optional("kept_crc", pa.uint64(), "xor over the hashed kept sets of all events, layers and heads" + _FULL),
    _optional("nan_scores", pa.int64(), "candidates that the policy scored NaN, all events, layers and heads" + _FULL),
    _required("concurrency", pa.int32(), "running requests of the engine while this one decoded"),
    _required("engine_id", pa.string(), "engine process that made the row"),
    _required("engine_kind", pa.string(), "vllm, transformers or simulated; simulated rows are never results"),
    _required("gpu", pa.string(), "device of the engine"),
    _optional("gpu_ids", pa.string(), "physical ids of the engine's GPUs, comma between; null on a machine without"),
    _required("node", pa.string(), "host of the engine"),
    _required("runner", pa.string(), "model runner of the engine"),
    _required("graph_mode", pa.string(), "CUDA graph mode, or eager"),
    _required("versions", pa.string(), "package versions of the engine, canonical JSON"),
    _required("git_revision", pa.string(), "revision of evictbench, empty when unknown"),
    _required("started_at", _TIME, "submission of the request"),
    _required("finished_at", _TIME, "arrival of the finished request"),
)

GRADES = _table(
    "grades",
    _required("row_id", pa.string(), "generation that was graded"),
    _required("cell_id", pa.string(), "cell of the generation"),
    _required("problem_id", pa.string(), "problem of the generation"),
    _required("sample", pa.int32(), "sample index of the generation"),
    _required("grader", pa.string(), "grader's name"),
    _required("judge", pa.string(), "judging model, or none"),
    _required("grader_version", pa.int32(), "version of the grader's rules"),
    _required("verdict", pa.string(), "correct, wrong, no_answer, truncated, error or ungraded"),
    _optional("lenient", pa.string(), "verdict if unfinished thoughts counted as well; null where not told apart"),
    _optional("extracted", pa.string(), "answer found in the text; null when none was"),
    _required("grade_method", pa.string(), "rule that decided"),
    _required("grade_seconds", pa.float64(), "time spent grading", "s"),
    _required("graded_at", _TIME, "when the grade was made"),
)

PLAN = _table(
    "plan",
    _required("cell_id", pa.string(), "16 hex digits naming the cell's identity"),
    _required("cell_label", pa.string(), "readable name of the cell"),
    _required("comparison_id", pa.string(), "arms pair only within"),
    _required("identity", pa.string(), "the cell's identity, canonical JSON"),
    _required("n_problems", pa.int32(), "problems to answer"),
    _required("samples_min", pa.int32(), "samples of each problem that make the cell complete"),
    _required("samples_max", pa.int32(), "samples at which topping up stops"),
    _required("expected_tokens", pa.float64(), "generated tokens the planner expects per row", "tokens"),
)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with exactly the columns of `schema`; nullable ones that it lacks are null.

    Raises ValueError for a required column that it lacks, and pa.ArrowException for one of another type.
    """
    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(table[field.name].cast(field.type))
        elif field.nullable:
            columns.append(pa.nulls(table.num_rows, field.type))
        else:
            raise ValueError(f"no column {field.name}")
    return pa.table(columns, schema=schema)
