"""Connecting to Ray: what must be in the environment before Ray is imported, then the backend or the job API."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backend import Backend
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from orchestrator.submission_ray import Cluster


_REACH_SECONDS = 5.0


def connect(address: str | None = None) -> Backend:
    """The backend on a Ray cluster, or on a local one that listens on loopback only and ends with this process.

    Raises UserError when there is no cluster at the address, or a local one does not come up.
    """
    if address not in (None, "auto"):
        _reach(str(address))
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


def _reach(address: str) -> None:
    """Raises UserError unless something listens at HOST:PORT. Ray itself would try for minutes, with much output."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in host:
        raise UserError(
            f"--address is '{address}'; a run connects to HOST:PORT of a cluster's head (6379 unless it was started "
            "otherwise), or to auto on one of its nodes. http://HEAD:8265 is for evictbench submit."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"nothing answers at --address {address}: {reason}. Is the cluster up, and is this machine in its network? "
            "From outside, evictbench submit goes through the dashboard's port."
        ) from error
