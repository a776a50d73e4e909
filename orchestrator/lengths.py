"""How long answers will be, learned from rows that exist: for longest-expected-first and for the range of `plan`.

A row's length is taken as cell x problem. A problem's factor is what all arms of its model and task say of it; a cell's
level leans on its arms of the same kind, those on the model and task, and these on the task's published mean, each as
long as it has few rows of its own. Rows that exist are those that finished first, so an early estimate is a low one;
`doubt` says by which factor it may be off.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.cells import Cell
from policies.budget import Protection

# Rows at which an estimate trusts what it has seen as much as what it leans on.
PRIOR_ROWS = 16.0
PROBLEM_ROWS = 2.0
# Factors, either way, that a figure may be off by. Lengths of arms of one model and task have differed by up to a
# third in the published table; a task's own figure may be anything.
MEASURED_DOUBT, PEER_DOUBT, DEFAULT_DOUBT = 1.1, 1.35, 2.0

_ROUNDS = 3


class Kind(StrEnum):
    """Classes of policies whose answers have about the same length."""

    FULL = "full"
    PROTECTED = "protected"
    UNPROTECTED = "unprotected"
    """Arms that may evict the question; many run on to the limit."""


@dataclass(frozen=True, slots=True)
class Source:
    """Whose lengths: a cell, and what it shares with others."""

    cell_id: str
    model: str
    task: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Seen:
    """Generated tokens of `rows` rows of one problem, summed."""

    source: Source
    problem_id: str
    rows: int
    tokens: float


@dataclass(frozen=True, slots=True)
class _Sum:
    rows: float = 0.0
    tokens: float = 0.0

    def plus(self, rows: float, tokens: float) -> _Sum:
        return _Sum(self.rows + rows, self.tokens + tokens)

    def leaning_on(self, prior: float) -> float:
        return (self.tokens + PRIOR_ROWS * prior) / (self.rows + PRIOR_ROWS)

    @property
    def trust(self) -> float:
        return self.rows / (self.rows + PRIOR_ROWS)


_Problem = tuple[str, str, str]
_Level = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Learned lengths; without rows every answer is the prior. Tokens are already divided by problem factors."""

    levels: Mapping[_Level, _Sum] = field(default_factory=dict)
    factors: Mapping[_Problem, float] = field(default_factory=dict)

    def level(self, source: Source, prior: float) -> float:
        """Mean generated tokens of a row of the cell over the problems of its task; prior is the task's figure."""
        mean = prior
        for key in _keys(source):
            mean = self.levels.get(key, _Sum()).leaning_on(mean)
        return mean

    def expected(self, source: Source, problem_id: str, prior: float) -> float:
        """Generated tokens of a row of one problem."""
        return self.level(source, prior) * self.factors.get((source.model, source.task, problem_id), 1.0)

    def doubt(self, source: Source) -> float:
        """Factor, either way, by which the level may be off; falls with the rows that speak for it."""
        peers, _, own = (self.levels.get(key, _Sum()).trust for key in _keys(source))
        unknown = peers * math.log(PEER_DOUBT) + (1 - peers) * math.log(DEFAULT_DOUBT)
        return math.exp(own * math.log(MEASURED_DOUBT) + (1 - own) * unknown)

    def origin(self, source: Source) -> str:
        """Where most of the level comes from, in words."""
        peers, _, own = (self.levels.get(key, _Sum()).trust for key in _keys(source))
        if own >= 0.5:
            return "this cell's rows"
        return "rows of the same model and task" if peers >= 0.5 else "the task's own figure"


NOTHING_LEARNED = Lengths()
"""Every answer is the prior."""


def source_of(cell: Cell) -> Source:
    """What a planned cell shares with others."""
    return Source(cell.cell_id, cell.model.path, cell.task.name, kind_of(cell.protection))


def kind_of(protection: Protection | str | None) -> Kind:
    """The class of an arm; None is `full`, which protects everything."""
    if protection is None:
        return Kind.FULL
    return Kind.PROTECTED if protection == Protection.PROMPT else Kind.UNPROTECTED


def learn(seen: Iterable[Seen]) -> Lengths:
    """Alternate between the cells' levels and the problems' factors; the order of `seen` changes nothing."""
    rows: dict[tuple[Source, str], _Sum] = defaultdict(_Sum)
    for entry in seen:
        key = entry.source, entry.problem_id
        rows[key] = rows[key].plus(entry.rows, entry.tokens)
    ordered = sorted(rows.items(), key=lambda item: (item[0][0].cell_id, item[0][1]))
    factors: dict[_Problem, float] = {}
    for _ in range(_ROUNDS):
        factors = _factors(ordered, _means(ordered, factors))
    levels: dict[_Level, _Sum] = defaultdict(_Sum)
    for (source, problem), found in ordered:
        for level in _keys(source):
            levels[level] = levels[level].plus(found.rows, found.tokens / _factor(factors, source, problem))
    return Lengths(dict(levels), factors)


def _keys(source: Source) -> tuple[_Level, _Level, _Level]:
    shared = source.model, source.task
    return shared, (*shared, source.kind.value), (*shared, source.kind.value, source.cell_id)


def _factor(factors: Mapping[_Problem, float], source: Source, problem: str) -> float:
    return factors.get((source.model, source.task, problem), 1.0)


def _means(
    ordered: Iterable[tuple[tuple[Source, str], _Sum]], factors: Mapping[_Problem, float]
) -> dict[Source, float]:
    sums: dict[Source, _Sum] = defaultdict(_Sum)
    for (source, problem), found in ordered:
        sums[source] = sums[source].plus(found.rows, found.tokens / _factor(factors, source, problem))
    return {source: max(total.tokens / total.rows, 1.0) for source, total in sums.items()}


def _factors(
    ordered: Iterable[tuple[tuple[Source, str], _Sum]], means: Mapping[Source, float]
) -> dict[_Problem, float]:
    """Relative length of each problem, its mean over the problems of a model and task 1."""
    sums: dict[_Problem, _Sum] = defaultdict(_Sum)
    for (source, problem), found in ordered:
        key = source.model, source.task, problem
        sums[key] = sums[key].plus(found.rows, found.tokens / means[source])
    raw = {key: (total.tokens + PROBLEM_ROWS) / (total.rows + PROBLEM_ROWS) for key, total in sums.items()}
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (model, task, _), factor in raw.items():
        groups[model, task].append(factor)
    return {key: factor * len(groups[key[:2]]) / math.fsum(groups[key[:2]]) for key, factor in raw.items()}
