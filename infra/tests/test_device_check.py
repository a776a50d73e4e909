"""The device check without a device: what it says, what it runs, and that one bad part does not end it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
import torch

from infra import device_check
from infra.device_check import FAIL, NOT_RUN, PARTS, PASS, Part, check
from infra.device_parts import arms, compare, generate, judge

SCRIPT = Path(device_check.__file__).with_suffix(".sh")
PRETEND = tuple(
    Part(name, f"{name} means nothing.", 1 if name == "hangs" else 20, ("no_such_package",) if name == "lacks" else ())
    for name in ("hangs", "dies", "lacks", "fails", "passes")
)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "PARTS_MODULE", "infra.tests.pretend_parts")
    monkeypatch.setattr(device_check, "environment", lambda: ("A GPU, 1 GiB", ["torch 1"]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_what_it_cannot_run_and_ends_with_2(tmp_path: Path) -> None:
    done = subprocess.run([SCRIPT, "--out", tmp_path / "out"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "torch sees no CUDA device" in done.stdout
    assert all(f"{part.name}: {part.proves}" in done.stdout for part in PARTS)
    assert not (tmp_path / "out").exists()


def test_all_parts_together_take_eight_minutes_at_most() -> None:
    assert sum(part.seconds for part in PARTS) <= 480


@pytest.mark.usefixtures("pretend")
def test_the_rest_goes_on_whatever_a_part_does(tmp_path: Path) -> None:
    shown: list[str] = []
    began = time.monotonic()
    assert check(PRETEND, tmp_path, shown.append) == 1
    assert time.monotonic() - began < 60
    found = {part["name"]: part for part in json.loads((tmp_path / "results.json").read_text())["parts"]}
    assert {name: part["status"] for name, part in found.items()} == {
        "hangs": FAIL, "dies": FAIL, "lacks": NOT_RUN, "fails": FAIL, "passes": PASS,
    }  # fmt: skip
    assert found["hangs"]["lines"] == ["ran past its 1 s; see log.txt"]
    assert found["dies"]["lines"] == ["exit status 1 without a result; see log.txt"]
    assert found["lacks"]["lines"] == ["not installed: no_such_package"]
    report = (tmp_path / "report.md").read_text()
    assert "| passes | PASS |" in report
    assert "passes: 3 of 3" in report
    assert "killed by the driver" in (tmp_path / "log.txt").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "report.md", "results.json"]


@pytest.mark.usefixtures("pretend")
def test_all_passed_is_0(tmp_path: Path) -> None:
    assert check(PRETEND[-1:], tmp_path, lambda _: None) == 0


def test_the_tax_is_judged_against_both_runs_of_stock_vllm() -> None:
    speeds = {"stock": [100.0, 102.0], "random_inplace": [100.5], "random": [98.0, 90.0, 99.0], "snapkv": [50.0]}
    good = judge(speeds | {"stock again": [101.0]})
    assert good.passed
    assert "| random | 98 (90 to 99) | 0.030 | 0.03 |" in good.lines
    assert "| snapkv | 50 (50 to 50) | 0.505 | - |" in good.lines
    assert "drifted by +0.0%" in good.lines[0]
    assert not judge(speeds | {"random": [97.0]}).passed
    assert not judge(speeds | {"random_inplace": [99.0]}).passed


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_reference_part_passes_where_the_engine_is_right() -> None:
    mode, made = generate(*arms())
    assert mode == "eager" or torch.cuda.is_available()
    found = compare(mode, made)
    assert found.passed, found.lines
    made["random-1"]["tokens"][5] += 1
    assert "| random-1 | 5 of 150 | equal |" in compare(mode, made).lines
