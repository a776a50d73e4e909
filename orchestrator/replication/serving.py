"""Published serving figures beside a store's throughput measurements: ratios within rounds, no accuracy runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from orchestrator.analysis_rows import records
from orchestrator.replication.columns import Status
from orchestrator.replication.costs import speed_of
from orchestrator.replication.names import METHODS, MODELS, same_model
from orchestrator.stats.throughput import FEWEST_ROUNDS, ratios

Columns = dict[str, Any]
Row = Mapping[str, Any]

# Prompt tokens, output tokens and requests of each published workload.
WORKLOADS = {
    "serving 1k/32k": (1024, 32768, 128),
    "serving 1k/8k, 512 req": (1024, 8192, 512),
    "serving 1k/8k, 64 req": (1024, 8192, 64),
    "single request 1k/8k": (1024, 8192, 1),
}
_OTHER = {"gain_over_TriAttention_pct": "TriAttention"}
METRICS = ("x_full", "output_tok_s", "gain_over_TriAttention_pct")
SERVING = "serving: evictbench bench throughput"
_VLLM, _GPU = "0.19.0", "H200"
_ONCE = "too few rounds for an interval"


def found(row: Row, measured: pd.DataFrame) -> Columns | None:
    """Columns of a serving number; None where the store measured no such arm of the model."""
    if row["metric"] not in METRICS or row["task"] not in WORKLOADS or row["policy"] not in METHODS or measured.empty:
        return None
    mine = measured[[same_model(row["model"], str(model)) for model in measured["model"]]]
    arms = {method: _arm(mine, method, row) for method in (row["policy"], "Full", "TriAttention")}
    other = _OTHER.get(row["metric"], "Full")
    if arms[row["policy"]].empty or (arms[other].empty and row["metric"] != "output_tok_s"):
        return None
    if row["metric"] == "output_tok_s":
        other = row["policy"]
    both = pd.concat([arms[name].assign(arm=name) for name in dict.fromkeys((row["policy"], other))])
    table = ratios(both, other)
    found_row = records(table[table["arm"] == row["policy"]])[0]
    if not found_row["rounds"]:
        return None
    columns = {**_estimate(row, found_row), "cell_id": str(arms[row["policy"]]["cell_id"].iloc[0])}
    columns["inside"] = _inside(row, columns)
    reasons = "; ".join(dict.fromkeys(_differences(both, row)))
    status = Status.BY_DESIGN if reasons or columns["inside"] is None else _plain(columns["inside"])
    return {**columns, "status": status.value, "reason": reasons or ("" if columns["inside"] is not None else _ONCE)}


def not_run(row: Row) -> Columns | None:
    """What would measure a serving number, and its GPU-hours: counted rounds at the published speed of the arm."""
    if row["metric"] not in METRICS or row["task"] not in WORKLOADS or row["policy"] not in METHODS:
        return None
    prompt, output, requests = WORKLOADS[row["task"]]
    methods = {row["policy"]} if row["metric"] == "output_tok_s" else {row["policy"], _OTHER.get(row["metric"], "Full")}
    hours = sum(FEWEST_ROUNDS * requests * output / speed_of(row["model"], method) / 3600 for method in methods)
    budget = "" if row["keep"] is None else f" K{row['keep']} prompt"
    arms = ", ".join(sorted(METHODS[method].policies[0] for method in methods))
    return {
        "status": Status.NOT_RUN.value,
        "reason": SERVING,
        "needs": f"{MODELS[row['model']]} {arms}{budget}, --prompt {prompt} --output {output} --requests {requests}",
        "gpu_hours": hours,
    }


def _arm(measured: pd.DataFrame, method: str, row: Row) -> pd.DataFrame:
    ours = METHODS[method]
    part = measured[measured["policy"].isin(ours.policies)]
    return part if method == "Full" else part[(part["keep"] == row["keep"]) & (part["protection"] == "prompt")]


def _estimate(row: Row, table: Row) -> Columns:
    counts = {"problems": table["rounds"], "wins": table["faster"], "losses": table["slower"], "ties": table["even"]}
    if row["metric"] == "output_tok_s":
        ends = {"low": table["tokens_per_second_low"], "high": table["tokens_per_second_high"]}
        return {**counts, "estimate": table["tokens_per_second"], **ends}
    low, high = (math.nan if table[name] is None else table[name] for name in ("low", "high"))
    ratio = table["ratio"]
    # The publication measured once: one more round, not another mean of ours.
    wide = math.sqrt(table["rounds"] + 1) if not math.isnan(low) else math.nan
    spans = [ratio * (end / ratio) ** power for power in (1.0, wide) for end in (low, high)]
    if row["metric"] == "gain_over_TriAttention_pct":
        ratio, spans = 100 * (ratio - 1), [100 * (end - 1) for end in spans]
    named = dict(zip(("low", "high", "predicted_low", "predicted_high"), spans, strict=True))
    return {**counts, "estimate": ratio, **named}


def _differences(both: pd.DataFrame, row: Row) -> Iterator[str]:
    """Conditions that are not the published ones; the engine's version never is."""
    prompt, output, requests = WORKLOADS[row["task"]]
    for name, column, wanted in (
        ("prompt", "prompt_tokens", prompt),
        ("output", "output_tokens", output),
        ("requests", "concurrency", requests),
    ):
        for value in sorted(set(both[column])):
            if value != wanted:
                yield f"{name} {value}, published {wanted}"
    for gpu in sorted(set(both["gpu"])):
        if _GPU not in str(gpu):
            yield f"device {gpu}, published {_GPU}"
    for mode in sorted(set(both["graph_mode"])):
        if mode != "eager":
            yield f"graph mode {mode}, published eager"
    for versions in sorted(set(both["versions"])):
        vllm = json.loads(versions).get("vllm")
        if vllm != _VLLM:
            yield f"vLLM {vllm}, published {_VLLM}"


def _inside(row: Row, columns: Columns) -> bool | None:
    """Whether the published value lies in the prediction; None without one."""
    low, high = columns.get("predicted_low"), columns.get("predicted_high")
    if low is None or high is None or math.isnan(low) or row["value"] is None:
        return None
    return bool(low - row["rounding"] <= row["value"] <= high + row["rounding"])


def _plain(inside: bool) -> Status:
    return Status.CONSISTENT if inside else Status.DEVIATES
