"""`--scale` of a probe job: fewer instances on the embedded model, lengths and budget shrunk alike."""

from __future__ import annotations

import math
from typing import Any

from orchestrator.errors import UserError
from orchestrator.probes.job import ProbeJob
from orchestrator.probes.session import REASONER
from orchestrator.scaling import INTERVAL, MIN_KEEP

LONGEST = 850
"""Filler that the reasoner's answers hold beside the facts, in tokens."""
MIN_INSTANCES = 8


def scaled(job: ProbeJob, share: float) -> ProbeJob:
    """The job at `share` of its instances. Raises UserError unless 0 < share <= 1."""
    if not 0 < share <= 1:
        raise UserError(f"--scale {share:g}: give a share of the instances, above 0 and at most 1, as in 0.01.")
    longest = max(layout.tokens for probe in job.probes for layout in probe.layouts().values())
    length = min(1.0, LONGEST / longest)
    data: dict[str, Any] = job.model_dump(mode="json", exclude_unset=True)
    data["name"] = f"{job.name[:48]}-scale-{share:g}"
    data["model"] = {"path": REASONER, "dtype": "float32"}
    data["instances"] = max(MIN_INSTANCES, math.ceil(job.instances * share))
    data["search"] = max(MIN_INSTANCES, math.ceil(job.search * share))
    for settings in (data["arms"], *data["arms"]["policies"]):
        if settings.get("keep"):
            settings["keep"] = [max(MIN_KEEP + INTERVAL, round(keep * length)) for keep in settings["keep"]]
        if settings.get("interval"):
            settings["interval"] = [min(interval, INTERVAL) for interval in settings["interval"]]
    data["arms"].setdefault("interval", [INTERVAL])
    for probe, original in zip(data["probes"], job.probes, strict=True):
        for key in ("lead", "distance", "gap"):
            probe[key] = math.ceil(getattr(original, key) * length)
    data.pop("filler", None)
    return ProbeJob.model_validate(data)
