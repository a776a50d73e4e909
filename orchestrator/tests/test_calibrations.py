"""A calibration: checked when the job is planned, part of the cell's identity, handed to the engine as a file."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from orchestrator import models
from orchestrator.errors import UserError
from orchestrator.grid import Plan, expand
from orchestrator.spec import JobSpec
from policies.calibration import BESIDE_MODEL, load

REASONER = models.resolve("embedded:reasoner")
EMBEDDED = REASONER.path_on_disk / BESIDE_MODEL


def planned(folder: Path, policies: str = "[random, triattention]", **model: str) -> Plan:
    entry = ", ".join(f"{key}: {value}" for key, value in {"path": "embedded:reasoner", **model}.items())
    text = f"""\
name: test
models: [{{{entry}, max_model_len: 2048}}]
tasks: [{{name: reasoner_w, limit: 8}}]
arms: {{policies: {policies}, keep: 264, interval: 16}}
sampling: {{temperature: 0, max_tokens: 1500}}
"""
    return expand(JobSpec.from_text(text, folder / "job.yaml"))


def test_embedded_model_brings_its_own(tmp_path: Path) -> None:
    random, scored = planned(tmp_path).cells
    fingerprint = load(EMBEDDED).fingerprint
    assert scored.cell.policy.params["calibration"] == fingerprint
    assert scored.engine.calibration == str(EMBEDDED)
    assert dict(scored.engine.needs) == {"all_layers": True, "calibration": True}
    assert random.engine.calibration == ""
    assert "calibration" not in random.cell.policy.params


def test_another_calibration_is_another_cell(tmp_path: Path) -> None:
    own = load(EMBEDDED)
    replace(own, abs_mean=own.abs_mean * np.float32(2)).save(tmp_path / "mine.safetensors")
    mine = planned(tmp_path, calibration="mine.safetensors").cells[1]
    embedded = planned(tmp_path).cells[1]
    assert mine.cell_id != embedded.cell_id
    assert mine.engine.calibration == str(tmp_path / "mine.safetensors")
    # A renamed or moved file is the same statistics.
    shutil.copy(EMBEDDED, tmp_path / "copy.safetensors")
    assert planned(tmp_path, calibration="copy.safetensors").cells[1].cell_id == embedded.cell_id


def test_refusals_name_place_and_next_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"job.yaml:2: models\[0\].calibration: triattention on embedded:reasoner: .*"
                       "No such file.*evictbench calibrate"):  # fmt: skip
        planned(tmp_path, calibration="absent.safetensors")
    other = load(EMBEDDED)
    replace(other, meta=replace(other.meta, model="blake2b:other")).save(tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=f"made for model revision blake2b:other, the model has {REASONER.revision}"):
        planned(tmp_path, calibration="other.safetensors")
    with pytest.raises(UserError, match=r"names calibration 00, .*Remove the name"):
        planned(tmp_path, "[{name: triattention, params: {calibration: '00'}}]")
    planned(tmp_path, "[random]", calibration="absent.safetensors")


def test_users_policy_without_the_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom policies.base import Needs, Scorer\n\n"
        "@dataclass(frozen=True)\nclass Mine(Scorer):\n    needs = Needs(calibration=True)\n"
    )
    with pytest.raises(UserError, match="needs a calibration but has no field `calibration: str`"):
        planned(tmp_path, "['mine.py:Mine']")
