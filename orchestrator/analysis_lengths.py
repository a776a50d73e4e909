"""Does an arm think longer? Paired differences of generated tokens (LENGTHS)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from orchestrator.analysis import DEFAULT
from orchestrator.analysis_columns import LENGTHS, frame
from orchestrator.analysis_pairs import Answers, Question, pairs
from orchestrator.stats.intervals import t_interval
from orchestrator.store.reader import Reader


def lengths_table(
    reader: Reader, question: Question = DEFAULT, campaign: str | None = None, answers: Answers | None = None
) -> pd.DataFrame:
    """One row per arm and reference with the columns LENGTHS, on the problems complete in both.

    longer   mean over problems of (arm - reference) generated tokens per answer, with a 95 % t interval over problems;
             both arms read the same prompt, so whole traces differ by as much
    A truncated answer counts with the tokens that it was allowed, so longer is a lower bound where one arm hits the
    limit more often. No verdict: length is not what a job declares.
    """
    answers = answers or Answers(reader, campaign)
    rows = []
    for found in pairs(answers, replace(question, looks=())):
        mine, theirs = (part["length"].reindex(found.common) for part in (found.mine, found.theirs))
        d = (mine - theirs).to_numpy(np.float64)
        low, high = t_interval(d)
        rows.append(
            {
                "cell_id": found.arm["cell_id"],
                "reference_id": found.reference["cell_id"],
                "paired_problems": d.size,
                "longer": float(d.mean()) if d.size else None,
                "longer_low": low,
                "longer_high": high,
            }
        )
    return frame(rows, LENGTHS)
