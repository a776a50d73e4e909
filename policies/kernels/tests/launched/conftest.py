"""Tests that launch kernels: on the GPU where there is one, else under TRITON_INTERPRET=1 in a process of its own.

The interpreter changes triton for a whole process, so without either these files are not collected (test_kernels.py
starts them).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETING else "cpu")
collect_ignore_glob = [] if INTERPRETING or DEVICE.type == "cuda" else ["test_*.py"]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Tensors are made where the kernels run."""
    with DEVICE:
        yield


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote shows: torch.empty holds NaN, or an integer that no kernel writes."""

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def fill(*args: Any, **kwargs: Any) -> torch.Tensor:
            tensor = make(*args, **kwargs)
            return tensor.fill_(float("nan") if tensor.is_floating_point() else -77)

        return fill

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


@pytest.fixture(scope="session", autouse=True)
def interpreter() -> None:
    """A fast interpreter that multiplies bf16."""
    if INTERPRETING:
        from policies.kernels.tests.interpreter import patch_once, widen_bf16_products  # noqa: PLC0415 - as below

        patch_once()
        widen_bf16_products()


@pytest.fixture(scope="session", autouse=True)
def program_order() -> None:
    """Programs of every second launch run last to first: what depends on their order shows, as it would on a device."""
    if not INTERPRETING:
        return
    from triton.runtime.interpreter import InterpreterBuilder  # noqa: PLC0415 - as below

    place, size = InterpreterBuilder.set_grid_idx, InterpreterBuilder.set_grid_dim
    turn = itertools.cycle((True, False))
    last: list[tuple[int, ...]] = [()]

    def set_grid_dim(builder: Any, *grid: int) -> None:
        last[0] = tuple(count - 1 for count in grid) if next(turn) else ()
        size(builder, *grid)

    def set_grid_idx(builder: Any, *index: int) -> None:
        place(builder, *(end - at for end, at in zip(last[0], index, strict=True)) if last[0] else index)

    InterpreterBuilder.set_grid_dim, InterpreterBuilder.set_grid_idx = set_grid_dim, set_grid_idx


@pytest.fixture(scope="session", autouse=True)
def launched() -> Iterator[None]:
    """Write every launch of the session to the file EVICTBENCH_LAUNCHES, for the comparison with those compiled."""
    if not INTERPRETING:
        yield
        return
    from policies.kernels.launch import Launch, watch  # noqa: PLC0415 - must not import triton when not interpreting

    seen: set[Launch] = set()
    with watch(lambda _, launch: seen.add(launch)):
        yield
    if path := os.environ.get("EVICTBENCH_LAUNCHES"):
        Path(path).write_text(json.dumps(sorted(str(launch) for launch in seen)))
