"""Every check of the doctor, with the fault it is for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator import doctor
from orchestrator.commands.doctor import command
from orchestrator.doctor import Level
from orchestrator.models import EMBEDDED_DIR
from orchestrator.store import semantics
from orchestrator.store.semantics import RACES, Observed


def test_the_page_has_a_line_per_check_and_counts(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--store", str(tmp_path / "s"), "--format", "json"])
    findings = {finding["name"]: finding for finding in json.loads(done.output)}
    for name in (
        "evictbench",
        "torch",
        "pins",
        "model embedded:reasoner",
        "  weights",
        "task reasoner_w",
        "store",
        "cpu",
    ):
        assert findings[name]["level"] in ("ok", "warn"), findings[name]
    assert done.exit_code == int(any(finding["level"] == "fail" for finding in findings.values()))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_exits_1_and_says_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--store", str(tmp_path), "--model", "embedded:nothing"])
    assert done.exit_code == 1
    assert "Did you mean" in done.output or "known: embedded:reasoner" in done.output
    assert "→ name a model that is here" in done.output


def test_a_cut_checkpoint_is_found(tmp_path: Path) -> None:
    copy = tmp_path / "m"
    shutil.copytree(EMBEDDED_DIR / "reasoner", copy)
    weights = copy / "model.safetensors"
    whole = weights.read_bytes()
    for damage in (whole[:-1], whole[:4], b""):
        weights.write_bytes(damage)
        found = {finding.name: finding for finding in doctor.model_facts(str(copy))}
        assert found["  weights"].level is Level.FAIL, len(damage)
    weights.write_bytes(whole)
    assert all(finding.level is Level.OK for finding in doctor.model_facts(str(copy)))


def test_a_local_file_system_has_what_a_store_needs(tmp_path: Path) -> None:
    (finding,) = doctor.store_semantics(tmp_path / "new")
    assert (finding.level, "ms a commit" in finding.detail) == (Level.OK, True), finding
    assert list(tmp_path.iterdir()) == []


SOUND = Observed(wins=RACES, whole=RACES, unseen=0, torn=0, unmoved=False, skew=0.1, commit=0.001)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (replace(SOUND, wins=2 * RACES), "40 winners"),
        (replace(SOUND, whole=RACES - 1), "both commit"),
        (replace(SOUND, unseen=3), "3 committed files"),
        (replace(SOUND, torn=1), "half replaced"),
        (replace(SOUND, unmoved=True), "miss new rows"),
        (replace(SOUND, skew=-9.0), "-9.0 s"),
    ],
)
def test_what_fails_is_named(broken: Observed, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semantics, "observe", lambda store: broken)
    (finding,) = doctor.store_semantics(tmp_path)
    assert (finding.level, said in finding.detail) == (Level.FAIL, True), finding


def test_missing_and_half_written_reads_are_counted_once_the_file_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    last = semantics._state(semantics._REPLACES)
    found = iter(["", "<1>", "", "<2", "<3>", last])
    monkeypatch.setattr(semantics, "_text", lambda path: next(found))
    assert semantics.torn(("store", "d")) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_an_unwritable_store_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    assert next(doctor.store_semantics(tmp_path / "s")).level is Level.FAIL


def test_wrong_pins_are_named(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.txt"
    lock.write_text("click==0.0.1\nno-such-package==1.0\n# comment==2\n")
    finding = next(doctor.pins({"cpu": lock, "gpu": lock}))
    assert finding.level is Level.WARN
    assert "(pinned 0.0.1)" in finding.detail
    assert "no-such-package missing (pinned 1.0)" in finding.detail
    assert str(lock) in finding.next_step
    assert next(doctor.pins({})).level is Level.OK


def test_a_second_copy_of_a_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dashboard").mkdir()
    (tmp_path / "dashboard" / "__init__.py").write_text("")
    real = importlib.util.find_spec

    def find(name: str) -> object:
        if name != "dashboard":
            return real(name)
        return importlib.util.spec_from_file_location(name, tmp_path / "dashboard" / "__init__.py")

    monkeypatch.setattr(importlib.util, "find_spec", find)
    finding = next(doctor.our_packages())
    assert (finding.level, f"dashboard from {tmp_path}" in finding.detail) == (Level.FAIL, True)
