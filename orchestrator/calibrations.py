"""The calibration that a policy of a job uses: checked when the job is planned, named by content in its cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from orchestrator.arms import Arm
from orchestrator.resources import LoadedModel
from orchestrator.spec import JobSpec
from policies.calibration import BESIDE_MODEL, Calibration, CalibrationError, ModelFacts, load

PARAMETER = "calibration"


def file_of(job: JobSpec, model: LoadedModel) -> Path:
    """The job's own file, relative to the job, else the one beside the model."""
    given = model.spec.calibration
    return (job.folder / given).resolve() if given else model.resolved.path_on_disk / BESIDE_MODEL


def _wanted(model: LoadedModel, arm: Arm) -> bool:
    """An outline plans for models that are not here, so it cannot look for their calibrations either."""
    return arm.policy.needs.calibration and model.resolved.path_on_disk.is_dir()


def refusals(job: JobSpec, index: int, model: LoadedModel, arm: Arm) -> Iterator[str]:
    """A calibration that is missing, damaged, made for another model, or another than the arm names."""
    if not _wanted(model, arm):
        return
    where = f"{job.place('models', index, 'calibration')}: {arm.policy.name} on {model.spec.path}"
    if PARAMETER not in arm.policy.params():
        yield f"{where}: the policy needs a calibration but has no field `{PARAMETER}: str`. Add it to the class."
        return
    file = file_of(job, model)
    try:
        found = _checked(file, model.resolved.path_on_disk, model.ref.revision)
    except (CalibrationError, OSError, ValueError, KeyError) as error:
        yield f"{where}: {error}"
        return
    named = arm.policy.params()[PARAMETER]
    if named not in ("", found.fingerprint):
        yield f"{where}: the policy names calibration {named}, {file} is {found.fingerprint}. Remove the name."


def calibrated(job: JobSpec, model: LoadedModel, arm: Arm) -> Arm:
    """The arm with the fingerprint of its calibration, which makes it part of the cell's identity."""
    if not _wanted(model, arm):
        return arm
    found = _checked(file_of(job, model), model.resolved.path_on_disk, model.ref.revision)
    return dataclasses.replace(arm, policy=dataclasses.replace(arm.policy, **{PARAMETER: found.fingerprint}))


@cache
def _checked(file: Path, model: Path, revision: str) -> Calibration:
    return load(file, ModelFacts.read(model, revision))
