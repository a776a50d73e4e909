"""Notes under the report say what a number cannot."""

from __future__ import annotations

import pandas as pd

from orchestrator.report_notes import _short_traces

ROW = {
    "cell_label": "m t random K8 r2 prompt",
    "problems": 4,
    "long_problems": 0,
    "long_difference": float("nan"),
    "long_low": float("nan"),
    "long_high": float("nan"),
}


def test_where_every_problem_fits_no_difference_is_claimed() -> None:
    (note,) = _short_traces(pd.DataFrame([ROW]))
    assert note.startswith("m t random K8 r2 prompt: 4 of 4 problems fit into keep")
    assert note.endswith("nothing here tests eviction.")


def test_the_difference_on_the_others_is_given() -> None:
    some = {**ROW, "long_problems": 3, "long_difference": -0.5, "long_low": -0.75, "long_high": -0.25}
    (note,) = _short_traces(pd.DataFrame([some]))
    assert "1 of 4 problems fit" in note
    assert "-50.0 [-75.0, -25.0]" in note
