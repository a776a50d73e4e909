"""Which cells are compared with which, and on which problems: the rules that every comparison table shares.

Arms pair only within a comparison_id (model, task, sampling, protocol); a problem counts when all its planned samples
count in both arms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from orchestrator.analysis_rows import cells_of, counted, problems_of, records
from orchestrator.errors import UserError, closest
from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.sequential import Look, Stopping, reached, schedule, width
from orchestrator.stats.verdict import OURS, Rule, Verdict, judge
from orchestrator.store import aggregates
from orchestrator.store.reader import Reader

Cell = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """What every arm is compared with, and how it is decided.

    reference        policy name; its prompt-protected arm at the same model, task, sampling, keep and interval
    same_protection  compare with the reference under each arm's own protection instead
    family           comparisons that share one correction: those of one `model`, one `task`, or `all`
    looks            samples per problem after which interim results are tested, rising; the end is always a look
    stopping         the design ends at the first look at which all intervals of a (model, task) are narrow
    """

    reference: str = "random"
    same_protection: bool = False
    family: str = "model"
    rule: Rule = field(default_factory=lambda: OURS)
    looks: tuple[int, ...] = ()
    stopping: Stopping | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One arm beside its reference on the problems `common`, which are complete in both.

    mine, theirs  complete problems of each: counts, right, length by problem id
    seen          problems with any row in either arm
    rule          with the level of the look
    look, looks   the look whose samples these are, and the looks of the design; None without declared looks
    waiting       the design's first look has not been reached
    """

    arm: Cell
    reference: Cell
    full: Cell | None
    mine: pd.DataFrame
    theirs: pd.DataFrame
    common: pd.Index[str]
    seen: int
    rule: Rule
    look: Look | None = None
    looks: tuple[Look, ...] = ()
    waiting: bool = False

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What the comparison's numbers depend on, within one store at one time."""
        return (self.arm["cell_id"], self.reference["cell_id"], self.rule, self.look, self.looks, self.waiting)

    @property
    def paired(self) -> Paired:
        """Exact per-problem differences, arm - reference."""
        return pair_problems(self.mine, self.theirs, self.common)


class Answers:
    """Cells of a store or of one of its campaigns, with the counted answers of each problem."""

    def __init__(self, reader: Reader, campaign: str | None = None) -> None:
        """Reads names and counts; answers are summed in the store when asked for."""
        self.cells = {str(cell["cell_id"]): cell for cell in records(cells_of(reader, campaign))}
        self._reader, self._campaign = reader, campaign
        self._by_samples: dict[int | None, dict[str, pd.DataFrame]] = {}
        self._complete: dict[tuple[str, int | None], pd.DataFrame] = {}
        self._known: dict[Hashable, Any] = {}

    @cached_property
    def means(self) -> dict[str, Cell]:
        """aggregates.arm_means of every cell that has rows, by cell."""
        table = aggregates.arm_means(self._reader, list(self.cells))
        return {str(row["cell_id"]): row for row in records(table)}

    @cached_property
    def _graded(self) -> dict[str, pd.Series[Any]]:
        """Graded rows by cell and sample index."""
        table = aggregates.sample_counts(self._reader, list(self.cells))
        by_sample = table.set_index("sample")
        return {str(cell_id): part for cell_id, part in by_sample.groupby("cell_id")["graded"]}

    def rows(self, cell: Cell) -> pd.DataFrame:
        """Rows of analysis_rows.counted of one cell."""
        return counted(self._reader, pd.DataFrame([cell]))

    def problems(self, samples: int | None = None) -> dict[str, pd.DataFrame]:
        """problems_of all rows, or of those whose sample index is below `samples`, by cell."""
        if samples not in self._by_samples:
            self._by_samples[samples] = problems_of(self._reader, list(self.cells), samples)
        return self._by_samples[samples]

    def complete(self, cell: Cell, samples: int | None = None) -> pd.DataFrame:
        """complete_problems of a cell, by problem id in sorted order; the same frame every time."""
        key = (str(cell["cell_id"]), samples)
        if key not in self._complete:
            self._complete[key] = complete_problems(cell, self.problems(samples), samples).sort_index()
        return self._complete[key]

    def long(self, reference: Cell, full: Cell | None) -> pd.Index[str] | None:
        """long_problems of all samples; the same index every time."""
        key = ("long", full and full["cell_id"], reference["keep"])
        return self.remembered(key, lambda: long_problems(reference, self.problems(), full))

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when this key was asked for first: answers never change, so nor does what is computed.

        Another reference or rule then costs only the comparisons that it does not share with those before.
        """
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found

    def samples_done(self, cell: Cell) -> int:
        """Samples that every planned problem has, graded; 0 without a plan."""
        if cell["planned_problems"] is None or str(cell["cell_id"]) not in self._graded:
            return 0
        per_sample = self._graded[str(cell["cell_id"])]
        full = per_sample[per_sample >= int(cell["planned_problems"])].index
        return next((count for count in range(len(full) + 1) if count not in full), 0)


def pairs(answers: Answers, question: Question) -> list[Pair]:
    """Every arm with its reference, in the order of the cells. Raises UserError for a reference that no cell has."""
    known = sorted({str(cell["policy"]) for cell in answers.cells.values()})
    if question.reference not in known and known:
        raise UserError(
            f"reference '{question.reference}' has no cell here; policies: {', '.join(known)}."
            f"{closest(question.reference, known)}"
        )
    found = [
        (arm, reference) for arm in answers.cells.values() for reference in references(arm, answers.cells, question)
    ]
    goes_on = _going_on(found, answers, question.stopping) if question.looks and question.stopping else frozenset()
    return [
        _looked_at(arm, reference, answers, question, goes_on=str(arm["comparison_id"]) in goes_on)
        for arm, reference in found
    ]


def _going_on(found: Sequence[tuple[Cell, Cell]], answers: Answers, stopping: Stopping) -> frozenset[str]:
    """Comparison ids of a design that may end early whose samples so far are not its last: what they show is interim.

    All arms of one end together: at the last look, or when every interval is narrow at the look they have all reached.
    """
    open_ = set()
    for arm, reference in found:
        now = _planned(arm, reference)
        narrow = min(answers.samples_done(cell) for cell in (arm, reference)) >= now > 0 and (
            width(beside(arm, reference, answers, OURS, now).paired) <= stopping.width
        )
        if now < stopping.most and not narrow:
            open_.add(str(arm["comparison_id"]))
    return frozenset(open_)


def _planned(arm: Cell, reference: Cell) -> int:
    """Samples per problem that both arms are to get, as far as is decided; 0 without a plan."""
    return min((int(c["planned_samples"]) for c in (arm, reference) if c["planned_samples"] is not None), default=0)


def _looked_at(arm: Cell, reference: Cell, answers: Answers, question: Question, *, goes_on: bool) -> Pair:
    """The pair at the look that decides: the first that settles it, else the last one reached, else what is there."""
    planned = _planned(arm, reference)
    if not question.looks or not planned:
        return beside(arm, reference, answers, question.rule, None)
    if goes_on and question.stopping is not None:
        planned = question.stopping.most
    try:
        plan = schedule([look for look in question.looks if look <= planned], planned, question.rule.alpha)
    except ValueError as error:
        raise UserError(f"analysis.looks: {error}. Write rising numbers of samples, as in looks: [2, 4, 8].") from error
    now = reached(plan, min(answers.samples_done(cell) for cell in (arm, reference)))
    for look in now:
        found = beside(arm, reference, answers, replace(question.rule, alpha=look.alpha), look.samples)
        if judge(found.paired, found.rule).verdict in (Verdict.BETTER, Verdict.WORSE) or look is now[-1]:
            return replace(found, look=look, looks=plan)
    first = replace(question.rule, alpha=plan[0].alpha)
    return replace(beside(arm, reference, answers, first, plan[0].samples), looks=plan, waiting=True)


def beside(arm: Cell, reference: Cell, answers: Answers, rule: Rule, samples: int | None = None) -> Pair:
    """Two cells of one comparison, at all samples or at the first `samples` of each problem."""
    problems = answers.problems(samples)
    mine, theirs = (answers.complete(cell, samples) for cell in (arm, reference))
    seen = [problems[str(cell["cell_id"])].index for cell in (arm, reference) if cell["cell_id"] in problems]
    whole = len(seen) == 2 and seen[0].equals(seen[1])
    return Pair(
        arm=arm,
        reference=reference,
        full=full_arm(arm, answers.cells),
        mine=mine,
        theirs=theirs,
        common=shared_problems(mine, theirs),
        seen=len(seen[0]) if whole else len(set().union(*seen)),
        rule=rule,
    )


def shared_problems(mine: pd.DataFrame, theirs: pd.DataFrame) -> pd.Index[str]:
    """Problems that both frames hold, sorted."""
    if mine.index.equals(theirs.index) and mine.index.is_monotonic_increasing:
        return mine.index
    return mine.index.intersection(theirs.index).sort_values()


def pair_problems(mine: pd.DataFrame, theirs: pd.DataFrame, common: pd.Index[str]) -> Paired:
    """Pair two frames of problems_of on the problems `common`, which both hold."""
    return pair(*_counts(mine, common), *_counts(theirs, common))


def _counts(part: pd.DataFrame, common: pd.Index[str]) -> list[npt.NDArray[np.int64]]:
    """Right and counted answers of these problems."""
    place = slice(None) if part.index is common else part.index.get_indexer(common)
    return [part[name].to_numpy(np.int64)[place] for name in ("right", "counts")]


def complete_problems(cell: Cell, problems: Mapping[str, pd.DataFrame], samples: int | None = None) -> pd.DataFrame:
    """Problems all of whose wanted samples count: `samples`, or those of the plan.

    Without a plan, wanted is what the cell's fullest problem has.
    """
    part = problems.get(str(cell["cell_id"]))
    if part is None:
        return pd.DataFrame({"counts": [], "right": [], "length": []}, index=pd.Index([], dtype=object))
    planned = cell["planned_samples"]
    wanted = samples or (int(part["counts"].max()) if pd.isna(planned) else int(planned))
    return part[part["counts"] >= max(1, wanted)]


def long_problems(reference: Cell, problems: Mapping[str, pd.DataFrame], full: Cell | None) -> pd.Index[str] | None:
    """Problems whose full-cache traces exceed the reference's keep on average; None without a full arm."""
    if full is None or full["cell_id"] not in problems or reference["keep"] is None:
        return None
    lengths = problems[full["cell_id"]]["length"]
    return lengths.index[lengths > reference["keep"]]


def references(arm: Cell, cells: Mapping[str, Cell], question: Question) -> Iterator[Cell]:
    """The cells an arm is compared with: one, or for `full` one per keep and interval; never itself."""
    candidates = [
        cell
        for cell in cells.values()
        if cell["policy"] == question.reference and cell["comparison_id"] == arm["comparison_id"]
    ]
    wanted = arm["protection"] if question.same_protection and arm["policy"] != "full" else "prompt"
    if question.same_protection and question.reference != "full":
        candidates = [cell for cell in candidates if cell["protection"] == wanted]
    if "full" not in (arm["policy"], question.reference):
        candidates = [cell for cell in candidates if budget(cell) == budget(arm)]
    # With several arms of the reference at one budget, the plainest counts: protected, same recent rule, no parameters.
    candidates.sort(key=lambda c: (c["protection"] != wanted, c["recent"] != arm["recent"], c["policy_params"]))
    first: dict[tuple[Any, Any], Cell] = {}
    for cell in candidates:
        first.setdefault(budget(cell), cell)
    return (cell for cell in first.values() if cell["cell_id"] != arm["cell_id"])


def budget(cell: Cell) -> tuple[Any, Any]:
    """What arms of one comparison share: keep and interval."""
    return cell["keep"], cell["interval"]


def full_arm(arm: Cell, cells: Mapping[str, Cell]) -> Cell | None:
    """The full-cache cell of an arm's model, task and sampling."""
    same = (cell for cell in cells.values() if cell["comparison_id"] == arm["comparison_id"])
    return next((cell for cell in same if cell["policy"] == "full"), None)
