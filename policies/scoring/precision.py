"""The precision of scores."""

from __future__ import annotations

import torch


def at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """fp32, whatever the cache holds; fp64 stays, so that vector files are compared without our own rounding."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
