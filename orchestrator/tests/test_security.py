"""What must not happen whatever a job or a store says: code from data, secrets on disk, ports open to the network."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator import campaign, cluster
from orchestrator.errors import UserError
from orchestrator.spec import JobSpec
from orchestrator.tests.e2e.harness import Site
from orchestrator.tests.machines import job_text

ROOT = Path(__file__).parents[2]
SECRET = "hf_Qw3rTySecretValue"
# Programs of models run there, behind walls; a benchmark's packed texts are read with every global refused.
WALLED = "orchestrator/tasks/code/"
LOADERS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN = {"pickle.load", "pickle.loads", "cloudpickle.load", "cloudpickle.loads", "torch.load", "joblib.load"}


def called(*packages: str) -> Iterator[tuple[str, ast.Call, str]]:
    """Every call with its file and the name that is called, tests apart."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/tests/" in name or name.startswith(WALLED):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    yield name, node, ast.unparse(node.func)


def test_nothing_reads_pickles_or_runs_text_that_it_was_given() -> None:
    for path, call, name in called("policies", "workers", "orchestrator", "dashboard"):
        assert name not in FORBIDDEN | LOADERS, f"{path}:{call.lineno} calls {name}"
        arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert arguments.get("allow_pickle", "False") == "False", f"{path}:{call.lineno}"
        if name in ("yaml.load", "yaml.load_all"):
            assert "Safe" in ast.unparse(call), f"{path}:{call.lineno}"


def test_the_search_sees_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.py").write_text("import pickle\npickle.load(open('f', 'rb'))\n")
    monkeypatch.setattr("orchestrator.tests.test_security.ROOT", tmp_path)
    assert "pickle.load" in {name for *_, name in called("bad")}


def test_a_job_file_cannot_name_python_objects(tmp_path: Path) -> None:
    target = tmp_path / "made"
    text = job_text().replace("name: test", f'name: !!python/object/apply:os.mkdir ["{target}"]')
    with pytest.raises(UserError):
        JobSpec.from_text(text)
    assert not target.exists()


def test_secrets_of_the_environment_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    site = Site(tmp_path, limit=16, policies="random")
    campaign.submit(campaign.prepare(site.job))
    assert (site.store / "store.json").exists()
    assert holding(site.store) == []


def holding(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
def test_a_run_leaves_no_secret_in_rows_logs_or_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    site = Site(tmp_path, limit=16, policies="random")
    status, output = site.run()
    assert (status, SECRET in output) == (0, False)
    assert list(site.store.glob("campaigns/*/logs/*"))
    assert holding(site.store) == []


@pytest.mark.slow
def test_a_ray_of_our_own_listens_on_loopback_alone() -> None:
    backend = cluster.connect()
    try:
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        sockets = [s for process in family for s in process.net_connections("inet") if s.status == psutil.CONN_LISTEN]
        assert sockets
        assert {s.laddr.ip for s in sockets} <= {"127.0.0.1", "::1"}
    finally:
        backend.close()
