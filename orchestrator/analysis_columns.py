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
    **_columns(_NUMBER, "wrong no_answer truncated error lenient prompt_tokens output_tokens events never_evicts"),
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


# Differences pooled over tasks, models or both (`scope`), clustered by problem across models. keep and interval are
# missing where the pooled cells have several; equivalence_power: chance of equivalence at no difference.
POOLED: Mapping[str, str] = {
    **_columns(_TEXT, "scope model task policy policy_params protection reference_policy weights"),
    **_columns(_COUNT, "at_keep at_interval cells problems wins losses ties"),
    **_columns(_NUMBER, "difference low high"),
    **_columns(_TEXT, "verdict reason"),
    **_columns(_FLAG, "provisional"),
    **_columns(_NUMBER, "detectable margin equivalence_power never_evicts"),
    **_columns(_COUNT, "long_problems"),
    **_columns(_NUMBER, "long_difference long_low long_high"),
}

# One policy with and without prompt protection at the same model, task, keep and interval: change = protected - bare,
# and what of it the reference's own change does not explain (beyond), all paired by problem; shares of the prompt kept.
PROTECTION: Mapping[str, str] = {
    **_columns(_TEXT, "model task comparison_id policy policy_params bare_protection cell_id bare_id"),
    **_columns(_COUNT, "keep interval"),
    **_columns(_NUMBER, "accuracy bare_accuracy change low high"),
    **_columns(_TEXT, "interval_kind verdict reason"),
    **_columns(_FLAG, "provisional"),
    **_columns(_COUNT, "problems wins losses ties"),
    **_columns(_NUMBER, "prompt_kept bare_prompt_kept"),
    **_columns(_COUNT, "beyond_problems"),
    **_columns(_NUMBER, "beyond beyond_low beyond_high"),
}

# One point of a curve over keep: the arm's accuracy, its paired differences to the reference at the same keep and to
# the full cache, and how much keep compresses the full cache's traces (mean length / keep).
SWEEP: Mapping[str, str] = {
    **KEYS,
    **_columns(_NUMBER, "compression accuracy low high"),
    **_columns(_COUNT, "problems samples"),
    **_columns(_FLAG, "provisional"),
    **_columns(_NUMBER, "difference difference_low difference_high"),
    **_columns(_TEXT, "verdict"),
    **_columns(_COUNT, "wins losses ties"),
    **_columns(_NUMBER, "full_difference full_low full_high"),
}

# Generated tokens of an arm against its reference's, paired by problem.
LENGTHS: Mapping[str, str] = {
    **_columns(_TEXT, "cell_id reference_id"),
    **_columns(_COUNT, "paired_problems"),
    **_columns(_NUMBER, "longer longer_low longer_high"),
}

# What common seeds buy in one comparison (stats.seeds).
SEEDS: Mapping[str, str] = {
    **KEYS,
    **_columns(_TEXT, "reference_id reference_policy"),
    **_columns(_COUNT, "problems samples wins losses ties"),
    **_columns(_NUMBER, "difference seed_correlation variance_ratio variance_low variance_high samples_saved"),
}


def frame(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Rows as a frame with exactly these columns and dtypes; what a row lacks is missing."""
    table = pd.DataFrame([{name: row.get(name) for name in columns} for row in rows], columns=list(columns))
    table = table.astype(dict(columns))
    for name, dtype in columns.items():
        if dtype == _TEXT:
            table[name] = table[name].where(table[name].notna(), None)
    return table
