"""Declared columns of the analysis tables: name -> pandas dtype. Shares and differences are fractions in [-1, 1]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

_TEXT, _COUNT, _NUMBER, _FLAG = "object", "Int64", "float64", "boolean"


def _columns(dtype: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), dtype)


# What names an arm; both tables start with these.
KEYS: Mapping[str, str] = {
    **_columns(_TEXT, "cell_id cell_label comparison_id model task policy policy_params protection"),
    **_columns(_COUNT, "keep interval recent"),
    **_columns(_TEXT, "overflow_mode"),
}

# Accuracy with its interval, progress, outcomes, what eviction did, what it cost.
ARMS: Mapping[str, str] = {
    **KEYS,
    **_columns(_NUMBER, "accuracy low high"),
    **_columns(_TEXT, "interval_rule"),
    **_columns(_COUNT, "problems samples graded rows planned_problems planned_samples invalid"),
    **_columns(_NUMBER, "done"),
    **_columns(_FLAG, "complete"),
    **_columns(_NUMBER, "wrong no_answer truncated error lenient output_tokens events never_evicts"),
    **_columns(_NUMBER, "prompt_kept_mean prompt_kept_min cached_mean"),
    **_columns(_COUNT, "cached_peak overflow_rows preemptions"),
    **_columns(_NUMBER, "decode_tokens_per_second"),
}

# The reference, the estimate with the interval that decides, the verdict, the other interval and tests, power.
DIFFERENCES: Mapping[str, str] = {
    **KEYS,
    **_columns(_TEXT, "reference_id reference_policy reference_protection"),
    **_columns(_COUNT, "at_keep at_interval"),
    **_columns(_NUMBER, "difference low high"),
    **_columns(_TEXT, "interval_kind verdict reason"),
    **_columns(_FLAG, "provisional"),
    **_columns(_COUNT, "look looks"),
    **_columns(_NUMBER, "alpha"),
    **_columns(_COUNT, "problems samples reference_samples excluded wins losses ties"),
    **_columns(_NUMBER, "t_low t_high percentile_low percentile_high p_sign p_signflip p_holm p_bh"),
    **_columns(_COUNT, "family_size"),
    **_columns(_NUMBER, "detectable"),
    **_columns(_COUNT, "problems_needed"),
    **_columns(_NUMBER, "sample_factor"),
    **_columns(_COUNT, "long_problems"),
    **_columns(_NUMBER, "long_difference long_low long_high"),
}


def frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Rows as a frame with exactly these columns and dtypes; what a row lacks is missing."""
    table = pd.DataFrame([{name: row.get(name) for name in columns} for row in rows], columns=list(columns))
    table = table.astype(dict(columns))
    for name, dtype in columns.items():
        if dtype == _TEXT:
            table[name] = table[name].where(table[name].notna(), None)
    return table
