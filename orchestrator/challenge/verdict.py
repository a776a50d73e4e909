"""What a challenge showed: the challenger and its nulls against protected random, on problems it was not tuned on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from orchestrator.analysis_pairs import Answers, Pair, beside
from orchestrator.stats.arms import accuracy
from orchestrator.stats.comparison import Comparison, compare
from orchestrator.stats.verdict import OURS, Judgement, Rule, Verdict, withhold
from orchestrator.store.reader import Reader

FULL, RANDOM, CHALLENGER, MATCHED, PERMUTED = "full", "random", "challenger", "matched ages", "permuted scores"
# (arm, compared with): what the page shows, the question first.
COMPARISONS = (
    (CHALLENGER, RANDOM),
    (CHALLENGER, MATCHED),
    (CHALLENGER, PERMUTED),
    (MATCHED, RANDOM),
    (PERMUTED, RANDOM),
    (CHALLENGER, FULL),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One comparison on one split; accuracies over the problems that are complete in both arms."""

    arm: str
    against: str
    accuracy: float
    other: float
    result: Comparison


class _Split(Answers):
    """Answers to some of the problems."""

    def __init__(self, reader: Reader, problems: Sequence[str]) -> None:
        super().__init__(reader)
        self._wanted = set(problems)

    def problems(self, samples: int | None = None) -> dict[str, pd.DataFrame]:
        """Those of the split."""
        whole = super().problems(samples)
        return {cell: part[part.index.isin(self._wanted)] for cell, part in whole.items()}


def outcomes(reader: Reader, cells: Mapping[str, str], problems: Sequence[str], rule: Rule = OURS) -> list[Outcome]:
    """COMPARISONS on the given problems; cells: cell id of each arm that has run."""
    answers = _Split(reader, problems)
    present = {arm: answers.cells[cell] for arm, cell in cells.items() if cell in answers.cells}
    return [
        _outcome(arm, against, beside(present[arm], present[against], answers, rule))
        for arm, against in COMPARISONS
        if arm in present and against in present
    ]


def _outcome(arm: str, against: str, pair: Pair) -> Outcome:
    paired = pair.paired
    result = compare(paired, pair.rule)
    invalid = pair.arm["invalid"] + pair.reference["invalid"]
    if invalid:
        judgement = withhold(result.judgement, f"invalid: attestation failed in {invalid} rows")
        result = replace(result, judgement=judgement)
    arms = ((paired.correct_a, paired.samples_a), (paired.correct_b, paired.samples_b))
    mine, theirs = (accuracy(correct, samples).mean for correct, samples in arms)
    return Outcome(arm, against, mine, theirs, result)


def conclusion(found: Sequence[Outcome]) -> tuple[str, ...]:
    """The verdict in sentences. They say what the intervals say, and what is not settled."""
    verdicts = {(outcome.arm, outcome.against): outcome.result.judgement for outcome in found}
    main = verdicts.get((CHALLENGER, RANDOM))
    if main is None:
        return ("No verdict: the challenger or random has no complete problem.",)
    if main.verdict is Verdict.WORSE:
        return ("WORSE than protected random at the same keep.",)
    if main.verdict is not Verdict.BETTER:
        why = f" ({main.reason})" if main.reason else ""
        return (f"UNRESOLVED{why}: the data do not tell the challenger from protected random. That is not equality.",)
    return ("BETTER than protected random at the same keep.", *_because(verdicts))


def _because(verdicts: Mapping[tuple[str, str], Judgement]) -> Sequence[str]:
    lines = []
    for null, owes in ((MATCHED, "the ages it keeps"), (PERMUTED, "how many of each age its heads keep")):
        judgement = verdicts.get((CHALLENGER, null))
        if judgement is None:
            continue
        if judgement.verdict is Verdict.BETTER:
            lines.append(f"It also beats {null}: more than {owes} is at work.")
        else:
            lines.append(f"It is not shown to beat {null}: {owes} may be the whole reason.")
    return lines


def splits(reader: Reader, cell: str, tuning: int) -> tuple[list[str], list[str]]:
    """Problem ids of a cell in the tuning split (the first `tuning` of the task's order) and in the rest."""
    rows = reader.rows(["problem_id", "problem_index"], [cell]).drop_duplicates("problem_id")
    first = rows["problem_index"] < tuning
    return [str(p) for p in rows[first]["problem_id"]], [str(p) for p in rows[~first]["problem_id"]]


def traces(reader: Reader, cell: str, problems: Sequence[str]) -> pd.DataFrame:
    """The challenger's rows as challenge.fit takes them: first samples, so that more of them make no other null."""
    columns = ("problem_id", "sample", "n_prompt", "n_output", "events", "age_histogram", "union_alive")
    rows = reader.rows(columns, [cell])
    return rows[rows["problem_id"].isin(list(problems)) & (rows["sample"] == 0)]
