"""What travels with a submitted job, and what is refused before anything does."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import submission
from orchestrator.errors import UserError
from orchestrator.spec import JobSpec
from orchestrator.tests.machines import job_text

_POLICY = """
from dataclasses import dataclass
from policies.base import Scorer

@dataclass(frozen=True)
class Mine(Scorer):
    name = "mine"
    scorer = "policies.scoring.draws:per_head"
"""


def job(folder: Path, policy: str = "own/mine.py:Mine", data: str = "items.jsonl") -> JobSpec:
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own" / "mine.py").write_text(_POLICY)
    (folder / "items.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    (folder / "unrelated.bin").write_bytes(b"x" * 1000)
    text = job_text(arms=f"{{policies: [full, '{policy}'], keep: 264, interval: 16}}")
    text = text.replace("{name: reasoner_w, limit: 16}", f"{{name: jsonl, path: {data}}}")
    (folder / "job.yaml").write_text(text)
    return JobSpec.load(folder / "job.yaml")


def test_the_job_and_the_files_that_it_names_travel_and_nothing_else(tmp_path: Path) -> None:
    found = submission.package(job(tmp_path))
    assert [str(path) for path in found.files] == ["items.jsonl", "job.yaml", "own/mine.py"]
    found.write(tmp_path / "there")
    assert (tmp_path / "there" / "own" / "mine.py").read_text() == _POLICY
    assert found.size == sum((tmp_path / path).stat().st_size for path in found.files)


def test_a_models_calibration_travels(tmp_path: Path) -> None:
    (tmp_path / "c.safetensors").write_bytes(b"")
    for given, files in (("c.safetensors", ["c.safetensors", "job.yaml"]), ("/shared/c.safetensors", ["job.yaml"])):
        named = f"max_model_len: 2048, calibration: {given}"
        (tmp_path / "job.yaml").write_text(job_text().replace("max_model_len: 2048", named))
        found = submission.package(JobSpec.load(tmp_path / "job.yaml"))
        assert [str(path) for path in found.files] == files


def test_a_file_outside_the_folder_or_missing_is_named(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "items.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"path of task jsonl .*items\.jsonl lies outside the job's folder"):
        submission.package(job(inner, data="../items.jsonl"))
    with pytest.raises(UserError, match=r"gone\.jsonl does not exist"):
        submission.package(job(inner, data="gone.jsonl"))


def test_a_package_that_is_too_large_names_its_largest_file(tmp_path: Path) -> None:
    spec = job(tmp_path)
    (tmp_path / "items.jsonl").write_bytes(b"x" * 3 * 1024**2)
    with pytest.raises(UserError, match=r"are 3 MiB, at most 2 .* largest is items\.jsonl \(3 MiB\)"):
        submission.package(spec, limit=2 * 1024**2)


def test_a_place_of_this_machine_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job(tmp_path)
    submission.refuse_local_places(spec, "/shared/store")
    with pytest.raises(UserError, match=r"the store '\./store' is relative"):
        submission.refuse_local_places(spec, "./store")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    text = (tmp_path / "job.yaml").read_text().replace("embedded:reasoner", "weights")
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(UserError, match=r"models\[0\]\.path: 'weights' is a directory of this machine"):
        submission.refuse_local_places(JobSpec.load(tmp_path / "job.yaml"), "/shared/store")


def test_ids_count_on_from_the_highest_known() -> None:
    assert submission.next_id("a.b", []) == "a.b-1"
    assert submission.next_id("a.b", ["a.b-2", "a.b-10", "axb-99", "a.b-x"]) == "a.b-11"
