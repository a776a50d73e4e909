"""Exact distributions of sums on an integer lattice: what makes the bootstrap and the sign-flip test exact."""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt
from scipy import signal

# Multiply-adds up to which the direct sum is used: it has no cancellation, so tails keep their relative accuracy.
_DIRECT = 1 << 26


def convolve(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Distribution of the sum of two independent non-negative integers.

    a [p], b [q] probabilities at 0, 1, ...; returns [p + q - 1]. Relative accuracy of a few ulp for sizes up to
    p * q = 2^26, absolute accuracy of 1e-13 above (FFT).
    """
    direct = a.size * b.size <= _DIRECT
    return np.asarray(np.convolve(a, b) if direct else np.maximum(signal.fftconvolve(a, b), 0.0), dtype=np.float64)


def power(pmf: npt.NDArray[np.float64], n: int) -> npt.NDArray[np.float64]:
    """Distribution of the sum of n independent draws; pmf [p] at 0, 1, ..., returns [n * (p - 1) + 1]. n >= 1."""
    bits = [pmf]
    for _ in range(n.bit_length() - 1):
        bits.append(convolve(bits[-1], bits[-1]))
    return reduce(convolve, (part for place, part in enumerate(bits) if n >> place & 1))


def step(values: npt.NDArray[np.int64]) -> int:
    """Greatest common divisor of integers, at least 1: the lattice's true spacing."""
    return max(1, int(np.gcd.reduce(values))) if values.size else 1
