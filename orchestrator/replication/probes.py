"""Published probe figures beside results of `evictbench probe`: its probes.json, for equal model ids only.

The publication drew its instances from templates of its own, so theirs and ours are two samples of one population: a
prediction widens our interval by their number of instances.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError
from orchestrator.replication.columns import Status
from orchestrator.replication.design import INTERVAL
from orchestrator.replication.names import METHODS, same_model

Columns = dict[str, Any]
Row = Mapping[str, Any]

# The publication nests 250, 400 and 500 instances and does not say which number has which: the fewest, the widest.
INSTANCES = 250
PROBES = {
    "passcode needle": "passcode",
    "planted fact 1536 tok / 15 events": "planted_fact",
    "planted fact": "planted_fact",
    "two-fact recall-both": "two_facts",
}
# Columns of probes.json: estimate, low, high.
METRICS = {
    "retrieval": ("retrieval", "retrieval_low", "retrieval_high"),
    "exact_match": ("retrieval", "retrieval_low", "retrieval_high"),
    "mean_logprob_value": ("log_prob", "log_prob_low", "log_prob_high"),
    "mean_value_logprob": ("log_prob", "log_prob_low", "log_prob_high"),
    "recall_R": ("r", "r_low", "r_high"),
}
# Tokens between a fact and its question, where the publication says them; rounds of eviction before the passcode's.
_DISTANCES = {"planted_fact": 1536, "two_facts": 1536}
_ROUNDS = 57
_WHAT = {"planted fact": ("planted_fact", "distance_tokens"), "passcode needle": ("passcode", "eviction_rounds")}
_ENDS = {"all 8 heads": "kept", "all 8": "kept", "kept everywhere": "kept", "deleted everywhere": "deleted"}
_RANKED = {"best single KV head": 0, "second single KV head": 1}
_ALONE = re.compile(r"\{\d+\}")
_HEADS = re.compile(r"(?:(?:two|three) heads )?(\{[\d,]+\})|head (\d+) alone")
_APART = {"x only in h3": r"first in \{\d+\}", "y only in h5": r"second in \{\d+\}"}
_BOTH = ("x in h3 and y in h5", r"first in \{\d+\}, second in \{\d+\}")
_OWN_HEADS = {"x only in h3": "{3}", "y only in h5": "{5}", _BOTH[0]: "{3},{5}"}


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """Results of one probe job: the job as it ran, and its arms in the order of the run."""

    job: Mapping[str, Any]
    rows: Sequence[Row]

    @classmethod
    def read(cls, folder: Path) -> ProbeRun:
        """The folder that `evictbench probe` wrote. Raises UserError for any other."""
        file = folder / "probes.json"
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            run = cls(document["job"], [dict(row) for row in document["results"]])
            _ = run.model, run.job["arms"]["keep"], run.job["arms"]["interval"], run.job["probes"]
            return run
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"--probes {folder}: {file}: {reason}. Name a folder of evictbench probe.") from error
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"--probes {folder}: {file} is not what evictbench probe writes. Name a folder of evictbench probe."
            ) from error

    @property
    def model(self) -> str:
        """The model as the job names it."""
        return str(self.job["model"]["path"])


def found(row: Row, runs: Sequence[ProbeRun]) -> Columns | None:
    """Columns of a probe figure from the first run of its model that holds the arm; None where none does."""
    for run in runs:
        if same_model(str(row["model"]), run.model):
            columns = _setup(row, run) if row["metric"] in ("distance_tokens", "eviction_rounds") else _arm(row, run)
            if columns is not None:
                return columns
    return None


def _setup(row: Row, run: ProbeRun) -> Columns | None:
    probe, metric = _WHAT[row["task"]]
    if metric != row["metric"]:
        return None
    if metric == "eviction_rounds":
        values = [each["events"] for each in run.rows if each["probe"] == probe and each["events"]]
    else:
        values = [spec["distance"] for spec in run.job["probes"] if spec["kind"] == probe]
    if not values:
        return None
    equal = values[0] == row["value"]
    status, reason = (Status.CONSISTENT, "") if equal else (Status.BY_DESIGN, "the job asks for another number")
    return {"estimate": float(values[0]), "inside": equal, "status": status.value, "reason": reason}


def _arm(row: Row, run: ProbeRun) -> Columns | None:
    probe = PROBES.get(row["task"])
    if probe is None or row["metric"] not in METRICS or row["value"] is None:
        return None
    arms = [each for each in run.rows if each["probe"] == probe and each["fact"] == "all"]
    mine = next(_matching(row, arms), None)
    if mine is None:
        return None
    estimate, low, high = (mine[name] for name in METRICS[row["metric"]])
    if None in (estimate, low, high):
        return None
    wide = math.sqrt(1 + mine["n"] / INSTANCES)
    ends = [estimate + (end - estimate) * wide + side * row["rounding"] for end, side in ((low, -1), (high, 1))]
    inside = bool(ends[0] <= row["value"] <= ends[1])
    reason = "; ".join(_differences(row, run, probe, mine))
    status = Status.CONSISTENT if inside else Status.DEVIATES
    return {
        "estimate": estimate,
        "low": low,
        "high": high,
        "predicted_low": ends[0],
        "predicted_high": ends[1],
        "inside": inside,
        "problems": mine["n"],
        "samples": 1,
        "status": (Status.BY_DESIGN if reason else status).value,
        "reason": reason,
    }


def _matching(row: Row, arms: Sequence[Row]) -> Iterator[Row]:
    """Rows of the run that are the published arm, the preferred first."""
    what = str(row["policy"])
    if what in METHODS:
        method = METHODS[what]
        rule = "no" if row["protect_prompt"] == "no" else "yes"
        for policy in method.policies:
            for protection in method.protections(rule):
                yield from (arm for arm in arms if _is_free(str(arm["arm"]), policy, str(protection)))
    elif what in _RANKED:
        yield from [arm for arm in arms if _ALONE.fullmatch(arm["arm"])][_RANKED[what] :][:1]
    elif what in _ENDS:
        yield from (arm for arm in arms if arm["arm"] == _ENDS[what])
    elif what.startswith("fragmented"):
        yield from (arm for arm in arms if arm["arm"].startswith("scattered over"))
    elif what in _APART or what == _BOTH[0]:
        pattern = _APART.get(what, _BOTH[1])
        yield from (arm for arm in arms if re.fullmatch(pattern, arm["arm"]))
    elif named := _HEADS.fullmatch(what):
        heads = named[1] or f"{{{named[2]}}}"
        yield from (arm for arm in arms if arm["arm"] == heads)


def _is_free(title: str, policy: str, protection: str) -> bool:
    """Whether `random K1088 r64 none` is this policy under this protection."""
    words = title.split()
    return bool(words) and words[0] == policy and words[-1] == protection


def _differences(row: Row, run: ProbeRun, probe: str, arm: Row) -> Iterator[str]:
    """What the run does otherwise than the publication."""
    arms = run.job["arms"]
    for name, published in (("keep", row["keep"]), ("interval", INTERVAL)):
        if arms[name][0] != published:
            yield f"{name} {arms[name][0]}, published {published}"
    distances = [spec["distance"] for spec in run.job["probes"] if spec["kind"] == probe]
    if probe in _DISTANCES and distances and distances[0] != _DISTANCES[probe]:
        yield f"{distances[0]} tokens back, published {_DISTANCES[probe]}"
    if probe == "passcode" and arm["events"] != _ROUNDS:
        yield f"{arm['events']} events, published {_ROUNDS}"
    own = ",".join(re.findall(r"\{\d+\}", str(arm["arm"])))
    if row["policy"] in _OWN_HEADS and own != _OWN_HEADS[row["policy"]]:
        yield f"best heads {own}, published {_OWN_HEADS[row['policy']]}"
