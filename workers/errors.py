"""Failures an engine may raise; the scheduler decides by type, never by message."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all engine failures."""


class Retryable(EngineError):
    """The same chunk may succeed elsewhere or later (killed process, aborted request, lost node)."""


class Fatal(EngineError):
    """Trying again cannot help: bad model, refused feature, request that can never fit."""


class OutOfMemory(Retryable):
    """Device or host memory ran out; retried on another engine, then parked."""


class PolicyNotActive(Fatal):
    """The engine ran, but the policy it was asked for did not evict as the formula says."""
