"""Many comparisons at once: p values adjusted over a declared family (statistics.md section 5.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def holm(p: Values) -> Values:
    """Holm's step-down adjustment, controls the chance of any false claim. p [k] in [0, 1], NaN where not tested."""
    order, size = _order(p)
    adjusted = np.maximum.accumulate(p[order] * (size - np.arange(size)))
    return _placed(p, order, adjusted)


def benjamini_hochberg(p: Values) -> Values:
    """Benjamini and Hochberg's step-up adjustment, controls the expected share of false claims. p [k], NaN allowed."""
    order, size = _order(p)
    adjusted = np.minimum.accumulate((p[order] * size / np.arange(1, size + 1))[::-1])[::-1]
    return _placed(p, order, adjusted)


def _order(p: Values) -> tuple[npt.NDArray[np.int64], int]:
    """Places of the tested p values, smallest first, and the size of the family."""
    tested = np.flatnonzero(~np.isnan(p))
    return tested[np.argsort(p[tested], kind="stable")], tested.size


def _placed(p: Values, order: npt.NDArray[np.int64], adjusted: Values) -> Values:
    result = np.full(p.shape, np.nan)
    result[order] = np.minimum(adjusted, 1.0)
    return result
