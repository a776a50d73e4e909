"""Tests that launch kernels: as policies/kernels/tests/launched, in a process with TRITON_INTERPRET=1 or on a GPU."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETING or torch.cuda.is_available() else ["test_*.py"]

if INTERPRETING:
    # vLLM uses Triton on the CPU only beside a backend of that name
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    """A fast one."""
    if INTERPRETING:
        from policies.kernels.tests.interpreter import patch_once  # noqa: PLC0415 - not where it does not interpret

        patch_once()
