"""What a request and a policy hold in memory, in bytes: the cache's rows and the plugin's tables beside them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from workers.vllm_engine.events import EvictionCore


def bytes_per_token(vllm_config: Any, kv_cache_config: Any) -> float:
    """Bytes of one token's keys and values over all layers and ranks, as vLLM's cache holds them."""
    groups = kv_cache_config.kv_cache_groups
    one_rank = sum(len(g.layer_names) * g.kv_cache_spec.page_size_bytes / g.kv_cache_spec.block_size for g in groups)
    return one_rank * vllm_config.parallel_config.tensor_parallel_size


def table_bytes(core: EvictionCore) -> dict[str, int]:
    """Bytes of one worker's tables by what they hold: `positions` of a request, and what fields of Needs ask for.

    Those of a request that records them; `calibration` once for all requests.
    """
    requests, records = core.requests, core.requests.records
    found = {"positions": requests.positions[0].nbytes}
    if records is not None:
        tables = {"recent_queries": records.queries, "attention": records.mass, "slot_state": records.slot_state}
        found |= {name: table[:, 0].nbytes for name, table in tables.items() if table is not None}
    if core.calibration is not None:
        values = [getattr(core.calibration, field.name) for field in fields(core.calibration)]
        found["calibration"] = sum(value.nbytes for value in values if isinstance(value, np.ndarray))
    return found
