"""Declared columns of the replication tables: name -> pandas dtype."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

_TEXT, _COUNT, _NUMBER, _FLAG = "object", "Int64", "float64", "boolean"


class Status(StrEnum):
    """What a store says about one published number."""

    CONSISTENT = "consistent"
    DEVIATES = "deviates"
    BY_DESIGN = "differs by design"
    NOT_RUN = "not run"


def _columns(dtype: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), dtype)


# A published number. `published` is the text as printed; value, or value_low to value_high where a range was printed,
# in the metric's own unit (accuracy as a fraction, *_points in points); rounding: half a unit of the last digit.
# third_party: neither the paper's nor its repository's.
PUBLISHED: Mapping[str, str] = {
    **_columns(_TEXT, "number table model task policy protect_prompt"),
    **_columns(_COUNT, "keep"),
    **_columns(_TEXT, "compression metric published note source"),
    **_columns(_FLAG, "third_party"),
    **_columns(_NUMBER, "value value_low value_high rounding"),
}

# The same beside the store: estimate with its 95 % interval [low, high] in the metric's unit; the interval in which a
# repetition of the publication would fall [predicted_low, predicted_high], published noise included; inside: whether
# the published value does; problems and samples (most answers of a problem) behind it; wins, losses, ties where two
# arms are compared; the cells it comes from; for numbers that are not run the arms that would give them (`needs`) and
# their GPU-hours, each number on its own (arms are shared: replication.costs.campaign adds them up once).
REPLICATION: Mapping[str, str] = {
    **PUBLISHED,
    **_columns(_TEXT, "status reason"),
    **_columns(_NUMBER, "estimate low high predicted_low predicted_high"),
    **_columns(_FLAG, "inside"),
    **_columns(_COUNT, "problems samples wins losses ties"),
    **_columns(_TEXT, "cell_id reference_id needs"),
    **_columns(_NUMBER, "gpu_hours"),
}

# One arm that published numbers of this status need: problems, samples and tokens per answer as published.
CAMPAIGN: Mapping[str, str] = {
    **_columns(_TEXT, "model task policy policy_params protection"),
    **_columns(_COUNT, "keep problems samples numbers"),
    **_columns(_NUMBER, "tokens_per_answer tokens_per_second gpu_hours"),
}

# Wins and losses against the reference by the published rule (exact percentile interval, no smallest size), and by
# ours, of one model's arms that are complete on every task: behind / ahead / open count comparisons.
COUNTS: Mapping[str, str] = {
    **_columns(_TEXT, "model tasks contenders rule"),
    **_columns(_COUNT, "comparisons behind ahead open incomplete"),
}
