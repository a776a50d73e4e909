"""Throughput measurements of a store: files throughput/<cell_id>/<name>.parquet, one row per arm and round.

Apart from generations by design: accuracy runs never say anything about speed (contracts.md section 4).
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.store.paths import StorePaths
from orchestrator.store.schema import conform


def _field(name: str, kind: pa.DataType, meaning: str, unit: str = "", nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"meaning": meaning, "unit": unit})


_TEXT, _COUNT, _NUMBER = pa.string(), pa.int64(), pa.float64()

THROUGHPUT = pa.schema(
    [
        _field("cell_id", _TEXT, "cell of the arm: the same policy id as in generations"),
        _field("cell_label", _TEXT, "readable name of the cell"),
        _field("model", _TEXT, "model as the job names it"),
        _field("policy", _TEXT, "registered name of the policy"),
        _field("policy_params", _TEXT, "resolved parameters, canonical JSON"),
        _field("keep", _COUNT, "cached KV pairs per head right after an event", "tokens", nullable=True),
        _field("interval", _COUNT, "decoded tokens between events", "tokens", nullable=True),
        _field("protection", _TEXT, "prompt, sinks or none", nullable=True),
        _field("session", _TEXT, "one start of the engines; ratios are formed within (session, round)"),
        _field("round", _COUNT, "every arm once, in turn"),
        _field("order", _COUNT, "place within the round"),
        _field("warm_up", pa.bool_(), "never counted"),
        _field("tokens", _NUMBER, "generated tokens of all requests", "tokens"),
        _field("seconds", _NUMBER, "first submission to last token", "s"),
        _field("decode_tokens_per_second", _NUMBER, "mean over requests", "tokens/s", nullable=True),
        _field("ttft_p50_seconds", _NUMBER, "median time to the first token", "s", nullable=True),
        _field("ttft_p99_seconds", _NUMBER, "99th percentile of it", "s", nullable=True),
        _field("peak_cached_tokens", _COUNT, "most cached tokens per head of a request", "tokens", nullable=True),
        _field("request_bytes", _NUMBER, "peak cache of one request, rings and tables too", "bytes", nullable=True),
        _field("shared_bytes", _NUMBER, "what the policy keeps once, as calibration", "bytes", nullable=True),
        _field("prefix_cache_hit_rate", _NUMBER, "must be 0 for a round to count"),
        _field("preemptions", _COUNT, "must be 0 for a round to count"),
        _field("gpu", _TEXT, "device"),
        _field("tp", _COUNT, "tensor-parallel size"),
        _field("concurrency", _COUNT, "requests at once"),
        _field("pool_bytes", _NUMBER, "bytes of the KV pool", "bytes", nullable=True),
        _field("prompt_tokens", _COUNT, "prompt length", "tokens"),
        _field("output_tokens", _COUNT, "generated length", "tokens"),
        _field("graph_mode", _TEXT, "CUDA graph mode, or eager"),
        _field("versions", _TEXT, "package versions, canonical JSON"),
    ],
    metadata={"table": "throughput", "throughput_version": "1"},
)
# What must be equal for two measurements to be shown in one table.
CONDITIONS = (
    *("model", "gpu", "tp", "concurrency", "pool_bytes", "prompt_tokens", "output_tokens", "graph_mode", "versions"),
)


@dataclass(frozen=True)
class Measured:
    """Columns of THROUGHPUT, and one sentence per file that is not among them."""

    rows: pd.DataFrame
    skipped: tuple[str, ...] = ()


def read(paths: StorePaths) -> Measured:
    """All measurements of a store; files that cannot be read or lack a required column are named."""
    tables, skipped = [THROUGHPUT.empty_table()], []
    for path in sorted((paths.root / "throughput").glob("*/*.parquet")):
        try:
            tables.append(conform(pq.read_table(path), THROUGHPUT))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            skipped.append(f"Skipped {path.relative_to(paths.root)}: {str(error).splitlines()[0][:120]}.")
    return Measured(pa.concat_tables(tables).to_pandas(), tuple(skipped))
