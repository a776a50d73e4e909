"""Connecting to Ray: what must be in the environment before Ray is imported, then the backend or the job API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backend import Backend

if TYPE_CHECKING:
    from orchestrator.submission_ray import Cluster


def connect(address: str | None = None) -> Backend:
    """The backend on a Ray cluster, or on a local one that listens on loopback only and ends with this process.

    Raises UserError when there is no cluster at the address, or a local one does not come up.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray warns about every actor without a GPU.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is None:
        # Ray's only way to bind to loopback: on Linux it replaces 127.0.0.1 by the machine's address, and binds to all.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    from orchestrator.backend_ray import RayBackend  # noqa: PLC0415  Ray reads the variables above when imported

    return RayBackend(address)


def jobs(address: str) -> Cluster:
    """The job API of a cluster, `http://HEAD:8265`. Raises UserError when nothing fitting answers there."""
    tokens = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if any(os.environ.get(name) for name in tokens) or (Path.home() / ".ray" / "auth_token").exists():
        # `ray start` asks for the token where there is one; Ray's client shows it only when told to.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    from orchestrator.submission_ray import Cluster  # noqa: PLC0415  Ray reads the variable above when imported

    return Cluster(address)
