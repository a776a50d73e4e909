"""Connecting to Ray: what must be in the environment before Ray is imported, then the backend."""

from __future__ import annotations

import os

from orchestrator.backend import Backend


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
