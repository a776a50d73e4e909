"""Importing planner, store, statistics and pages leaves engines and Ray unloaded (contracts.md section 2).

Here, in the rightmost package, because it reads the modules of all the others. A fresh interpreter is asked, since
this one may have loaded torch for another test.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RAY_MODULES = ("orchestrator.backend_ray", "orchestrator.submission_ray")
PROBE = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    loaded = [heavy for heavy in sys.argv[1].split(",") if heavy in sys.modules]
    if loaded:
        sys.exit(f"importing {name} loads {', '.join(loaded)}")
"""


def modules(*folders: str) -> list[str]:
    """Dotted names of every module below the folders, tests and the two Ray modules left out."""
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return [
        name for name in names if ".tests" not in name and name not in RAY_MODULES and not name.endswith(".__main__")
    ]


def probe(heavy: str, names: list[str]) -> str:
    """What the fresh interpreter says against these imports; empty if nothing."""
    result = subprocess.run(
        [sys.executable, "-c", PROBE, heavy, *names],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    # Streamlit's caches say on stderr that no server runs here; only what ended the interpreter counts.
    return result.stderr if result.returncode else ""


def test_orchestrator_and_dashboard_data_load_no_engine() -> None:
    names = [*modules("orchestrator"), "dashboard.data", "dashboard.command"]
    assert probe("torch,vllm,ray", names) == ""


def test_planning_a_policy_needs_the_standard_library_only() -> None:
    names = ["policies.budget", "policies.base", "policies.registry", *modules("policies/methods"), "workers.api"]
    assert probe("torch,numpy,triton,vllm,ray", names) == ""


@pytest.mark.parametrize("heavy", ["torch", "ray"])
def test_the_probe_sees_a_heavy_import(heavy: str) -> None:
    assert f"importing {heavy} loads {heavy}" in probe(heavy, [heavy])
