"""Engines by kind. Imports only the one that is asked for: each brings heavy libraries."""

from __future__ import annotations

from workers.api import Engine, EngineSpec
from workers.errors import Fatal

KINDS = ("vllm", "simulated")


def create(spec: EngineSpec) -> Engine:
    """An engine that is not started yet. Raises Fatal for an unknown kind."""
    match spec.kind:
        case "vllm":
            from workers.vllm_engine.engine import VllmEngine  # noqa: PLC0415 - brings torch and vllm

            return VllmEngine(spec)
        case "simulated":
            from workers.simulated import SimulatedEngine  # noqa: PLC0415 - keeps both paths alike

            return SimulatedEngine(spec)
    raise Fatal(f"unknown engine kind {spec.kind!r}; known: {', '.join(KINDS)}")
