"""What a driver's answer means for an engine: a stand-in for nvidia-smi prints what the real one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers import gpus
from workers.gpus import GpuBusy

GPUS = """0, GPU-11111111-aaaa, NVIDIA H200, 143771, 143000
1, GPU-22222222-bbbb, NVIDIA H200, 143771, 68771
2, GPU-33333333-cccc, NVIDIA H200, 143771, [N/A]"""
APPS = """GPU-22222222-bbbb, 4242, /opt/venv/bin/python3, 73000
GPU-22222222-bbbb, 17, VLLM::EngineCore, [N/A]"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `nvidia-smi` whose answers lie in two files."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase \"$1\" in --query-gpu=*) cat '{tmp_path}/gpus';; *) cat '{tmp_path}/apps';; esac\n"
    )
    program.chmod(0o755)
    (tmp_path / "gpus").write_text(GPUS + "\n")
    (tmp_path / "apps").write_text(APPS + "\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_gpus_are_read_with_the_processes_that_hold_them(driver: Path) -> None:
    first, second, third = gpus.here()
    assert (first.index, first.uuid, first.free) == ("0", "GPU-11111111-aaaa", 143000 * 1024**2)
    assert [str(holder) for holder in second.holders] == ["pid 4242 (python3) 71.3 GiB", "pid 17 (VLLM::EngineCore)"]
    assert (third.free, gpus.busy([first, second, third])) == (None, (second,))


def test_names_mean_indices_or_ids_and_unknown_ones_stay_as_they_are(driver: Path) -> None:
    known = gpus.here()
    assert gpus.given({"CUDA_VISIBLE_DEVICES": "1, GPU-1111"}) == ("1", "GPU-1111")
    assert gpus.ids(["1", "GPU-1111", "MIG-9"], known) == ("GPU-22222222-bbbb", "GPU-11111111-aaaa", "MIG-9")
    assert gpus.given({}) == gpus.given({"CUDA_VISIBLE_DEVICES": ""}) == ()


def test_a_held_gpu_is_refused_with_gpu_bytes_and_process(driver: Path) -> None:
    gpus.require_free(["0"], "n1", grace=0)
    with pytest.raises(GpuBusy) as caught:
        gpus.require_free(["0", "1"], "n1", grace=0)
    assert caught.value.gpus == ("GPU-22222222-bbbb",)
    assert str(caught.value) == (
        "GPU 1 (NVIDIA H200, GPU-22222222-bbbb) of node n1 has 67.2 of 140.4 GiB free, an engine needs 126.4; "
        "held by pid 4242 (python3) 71.3 GiB, pid 17 (VLLM::EngineCore)"
    )


def test_an_engine_that_is_just_ending_is_waited_for(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(_: float) -> None:
        (driver / "gpus").write_text(GPUS.replace("68771", "143000"))

    monkeypatch.setattr("workers.gpus.time.sleep", ends)
    gpus.require_free(["1"], "n1", grace=5)


def test_without_a_driver_or_with_one_that_fails_nothing_is_known(driver: Path) -> None:
    (driver / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert gpus.here() == ()
    gpus.require_free(["0"], "n1", grace=0)
