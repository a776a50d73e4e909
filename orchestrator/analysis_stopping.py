"""What samples that stop early came to: how many each (model, task) got, of how many, and whether that is its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from orchestrator.analysis_columns import frame
from orchestrator.analysis_pairs import Answers, Question, pairs
from orchestrator.store.reader import Reader

# samples: asked for so far, of each problem; most: the job's max; ended: no more will be asked for; rows: of all arms
# at `samples`; saved: share of the rows of `most` that are not made.
STOPPING: Mapping[str, str] = {
    **dict.fromkeys(("model", "task"), "object"),
    **dict.fromkeys(("samples", "most", "rows"), "Int64"),
    "ended": "boolean",
    "saved": "float64",
}


def stopping_table(
    reader: Reader, question: Question, *, campaign: str | None = None, answers: Answers | None = None
) -> pd.DataFrame:
    """One row per (model, task) with the columns STOPPING; none for a question whose samples are fixed."""
    if question.stopping is None:
        return frame([], STOPPING)
    answers = answers or Answers(reader, campaign)
    most = question.stopping.most
    # What goes on is judged as a look of the design that ends at `most`; what has ended, at its own end.
    ends = {str(found.arm["cell_id"]): found.looks[-1].samples for found in pairs(answers, question) if found.looks}
    planned = pd.DataFrame([cell for cell in answers.cells.values() if cell["planned_samples"] is not None])
    rows: list[dict[str, Any]] = []
    if planned.empty:
        return frame(rows, STOPPING)
    for (model, task), part in planned.groupby(["model", "task"], sort=False):
        samples = int(part["planned_samples"].max())
        count = int((part["planned_problems"] * part["planned_samples"]).sum())
        compared = [ends[cell] for cell in part["cell_id"] if cell in ends]
        rows.append(
            {
                "model": model,
                "task": task,
                "samples": samples,
                "most": most,
                "rows": count,
                "ended": samples >= most or (bool(compared) and all(end == samples for end in compared)),
                "saved": 1 - count / float((part["planned_problems"] * most).sum()),
            }
        )
    return frame(rows, STOPPING)
