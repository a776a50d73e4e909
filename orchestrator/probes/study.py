"""Running probes: which arms, on which instances, in which order; results as plain rows.

Heads are ranked on instances of their own: what is reported of the best heads was not used to choose them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from orchestrator.arms import Arm, points
from orchestrator.probes import sites
from orchestrator.probes.instances import Instance, Layout
from orchestrator.probes.job import ProbeJob, ProbeSpec
from orchestrator.probes.sites import Heads, Placement
from orchestrator.probes.statistics import Floats, Recall, Survival, recall, survival_curve
from orchestrator.seeds import eviction_seed
from orchestrator.spec_sections import ArmSpec
from policies.budget import Protection
from workers.api import Eviction

FULL = "full cache"
FREE = "free"


class Grammar(Protocol):
    """Where instances come from."""

    def instance(self, layout: Layout, index: int) -> Instance:
        """Instance number `index` of a layout. Raises ValueError where the filler is too short."""


class Reader(Protocol):
    """The part of workers.transformers_engine.probe.ProbeEngine that a study needs."""

    layers: int
    heads: int

    def read(self, scripts: Sequence[Any], eviction: Eviction | None, interval: int) -> list[Any]:
        """Readings of scripts of one shape."""


@dataclass(frozen=True, slots=True)
class Record:
    """One instance under one arm; `log_prob`, `hit` and `free` per read, in the order of the instance's facts."""

    probe: str
    variant: str
    arm: str
    key: str
    values: tuple[str, ...]
    log_prob: tuple[float, ...]
    hit: tuple[bool, ...]
    free: tuple[bool, ...]
    events: int


@dataclass(frozen=True, slots=True)
class Row:
    """Statistics of one arm over its instances; `fact` is "all", or which of two."""

    probe: str
    variant: str
    arm: str
    fact: str
    events: int
    recall: Recall


@dataclass(slots=True)
class Results:
    """What a study found."""

    rows: list[Row] = field(default_factory=list)
    survival: dict[str, list[Survival]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """An arm's readings: log_prob, hit and free [n, reads], survival [n, events, L, H, tokens]."""

    log_prob: Floats
    hit: npt.NDArray[np.bool_]
    free: npt.NDArray[np.bool_]
    alive: npt.NDArray[np.bool_]

    @property
    def total(self) -> Floats:
        return self.log_prob.sum(1)


class Study:
    """One probe job on one engine. `make_script` is the engine's Script; `advance` is told of every batch."""

    def __init__(
        self, job: ProbeJob, engine: Reader, grammar: Grammar, make_script: Callable[..., Any],
        advance: Callable[[str], None] = lambda label: None,
    ) -> None:  # fmt: skip
        self._job, self._engine, self._grammar = job, engine, grammar
        self._make_script, self._advance = make_script, advance
        self.results = Results()
        self.arms = [
            arm for index, entry in enumerate(job.arms.policies)
            for arm in points(entry, job.arms, ("arms", "policies", index))
        ]  # fmt: skip
        assert job.arms.keep is not None
        self._keep, self._interval = job.arms.keep[0], job.arms.interval[0]

    def run(self, after_each: Callable[[Results], None] = lambda results: None) -> Results:
        """Every probe of the job; `after_each` sees the results so far. Raises ValueError where text is too short."""
        probes: dict[str, Callable[[ProbeSpec], None]] = {
            "planted_fact": self._planted,
            "two_facts": self._two_facts,
            "passcode": self._passcode,
            "restated": self._restated,
        }
        for spec in self._job.probes:
            probes[spec.kind](spec)
            after_each(self.results)
        return self.results

    def _planted(self, spec: ProbeSpec) -> None:
        ((_, layout),) = spec.layouts().items()
        heads = self._engine.heads
        search, held_out = self._instances(layout)
        rank = _Ranking(lambda placement: self._forced(search, placement), heads)
        best = rank.best_sets()
        ends = {name: self._forced(held_out, place) for name, place in _ends(heads, 1).items()}
        report = _Report(self, spec.kind, "", held_out, ends["deleted"].total, ends["kept"].total)
        for name, outcome in ends.items():
            report.add(name, outcome)
        single = {head: self._forced(held_out, sites.only(frozenset({head}))) for head in range(heads)}
        for head in rank.order:
            report.add(sites.named(frozenset({head})), single[head])
        intact: dict[Heads, float] = {}
        for chosen in best:
            outcome = self._forced(held_out, sites.only(chosen))
            intact[chosen] = report.add(sites.named(chosen), outcome).recall.retrieval
        if heads >= 3:
            self._scattered(report, held_out, best[-1], intact)
        free = self._free(held_out, self._uniform())
        report.add(f"{FREE}: random, no head forced", free)
        self._survival(spec.kind, held_out, free)

    def _scattered(
        self, report: _Report, instances: Sequence[Instance], triple: Heads, intact: dict[Heads, float]
    ) -> None:
        placement, rotation = sites.scattered(triple)
        tokens = len(next(iter(instances[0].facts.values())))
        equal = sum(share * intact[home] for home, share in sites.shares(tokens, rotation).items())
        row = report.add(placement.name, self._forced(instances, placement))
        self.results.notes.append(
            f"{row.probe}: cut up token by token over the pairs of {sites.named(triple)} a fact is retrieved in "
            f"{row.recall.retrieval:.3f}; whole, at equal mass, in {equal:.3f}."
        )

    def _two_facts(self, spec: ProbeSpec) -> None:
        ((_, layout),) = spec.layouts().items()
        heads = self._engine.heads
        search, held_out = self._instances(layout)
        ranked = {name: self._forced(search, place) for name, place in _ends(heads, 2).items()}
        gain = np.array([
            (self._forced(search, Placement("", (frozenset({head}),) * 2)).log_prob - ranked["deleted"].log_prob).sum(0)
            for head in range(heads)
        ])  # fmt: skip
        first = int(gain[:, 0].argmax())
        second = max((head for head in range(heads) if head != first), key=lambda head: gain[head, 1], default=first)
        ends = {name: self._forced(held_out, place) for name, place in _ends(heads, 2).items()}
        report = _Report(self, spec.kind, "", held_out, ends["deleted"].total, ends["kept"].total)
        for name, outcome in ends.items():
            report.add(name, outcome)
        for placement in sites.apart(first, second).values():
            report.add(placement.name, self._forced(held_out, placement))
        report.add(f"{FREE}: random, no head forced", self._free(held_out, self._uniform()))

    def _passcode(self, spec: ProbeSpec) -> None:
        ((_, layout),) = spec.layouts().items()
        _, held_out = self._instances(layout)
        report = _Report(self, spec.kind, "", held_out)
        report.add(FULL, self._read(held_out, None, self._interval, None, FULL))
        for arm in self.arms:
            if arm.rule is not None:
                report.add(arm.title, self._free(held_out, arm))

    def _restated(self, spec: ProbeSpec) -> None:
        chosen = [arm for arm in self.arms if arm.policy.name == "random"] or self.arms[:1]
        for variant, layout in spec.layouts().items():
            _, held_out = self._instances(layout)
            report = _Report(self, spec.kind, variant, held_out)
            for arm in chosen:
                report.add(arm.title, self._free(held_out, arm))

    def _instances(self, layout: Layout) -> tuple[list[Instance], list[Instance]]:
        """Instances to search on and others to report on, all of the commonest shape."""
        wanted = self._job.search + self._job.instances
        made = [self._grammar.instance(layout, index) for index in range(wanted)]
        (shape, count), *_ = Counter(_shape(instance) for instance in made).most_common(1)
        if count < wanted:
            self.results.notes.append(
                f"{wanted - count} of {wanted} instances left out: lengths of their own ({layout.tokens} tokens)."
            )
        same = [instance for instance in made if _shape(instance) == shape]
        split = max(1, round(len(same) * self._job.search / wanted))
        if len(same) - split < 2:
            raise ValueError(f"only {len(same)} of {wanted} instances have equal lengths; give more instances")
        return same[:split], same[split:]

    def _forced(self, instances: Sequence[Instance], placement: Placement) -> _Outcome:
        eviction = Eviction("random", {}, self._keep, self._interval, Protection.NONE, 0, 0)
        return self._read(instances, eviction, self._interval, placement, placement.name)

    def _free(self, instances: Sequence[Instance], arm: Arm) -> _Outcome:
        assert arm.rule is not None
        rule = arm.rule
        eviction = Eviction(
            arm.reference, arm.policy.params(), rule.budget.keep, rule.budget.recent, rule.protection, rule.n_sink, 0,
            rule.overflow,
        )  # fmt: skip
        return self._read(instances, eviction, rule.budget.interval, None, arm.title)

    def _uniform(self) -> Arm:
        """Random at the forced arms' budget, nothing protected."""
        entry = ArmSpec.model_validate({"name": "random", "protection": "none"})
        return next(points(entry, self._job.arms, ("arms",)))

    def _read(
        self, instances: Sequence[Instance], eviction: Eviction | None, interval: int, placement: Placement | None,
        label: str,
    ) -> _Outcome:  # fmt: skip
        readings = []
        for start in range(0, len(instances), self._job.batch):
            part = instances[start : start + self._job.batch]
            readings += self._engine.read([self._script(each, placement) for each in part], eviction, interval)
            self._advance(label)
        first = instances[0].reads[0][0]
        log_prob = np.array([[sum(read) for read in reading.logprobs] for reading in readings])
        hit = np.array([[all(read) for read in reading.hits] for reading in readings])
        free = np.array([
            [reading.free[a - first : b - first] == each.tokens[a:b] for a, b in each.reads]
            for reading, each in zip(readings, instances, strict=True)
        ])  # fmt: skip
        return _Outcome(log_prob, hit, free, np.stack([reading.alive for reading in readings]))

    def _script(self, instance: Instance, placement: Placement | None) -> Any:
        pinned, banned = (
            placement.masks(instance, self._engine.layers, self._engine.heads) if placement else (None,) * 2
        )
        seed = eviction_seed(self._job.seed, "probe", instance.key, 0)
        # Two facts have mentions in numbers of their own: nothing equal to watch.
        watched = next(iter(instance.facts.values())) if len(instance.facts) == 1 else ()
        return self._make_script(instance.tokens, instance.prompt, instance.reads, seed, pinned, banned, watched)

    def _survival(self, probe: str, instances: Sequence[Instance], outcome: _Outcome) -> None:
        """Curves against theory, of facts that lie at equal positions in every instance."""
        positions = {next(iter(instance.facts.values())) for instance in instances}
        if len(positions) != 1:
            return
        start = max(self._keep + self._interval, instances[0].prompt + 1)
        # A token is a candidate from the first event that finds it outside the newest `interval`.
        since = np.array([
            max(0, math.ceil((place + self._interval + 1 - start) / self._interval)) for place in positions.pop()
        ])  # fmt: skip
        chance = (self._keep - self._interval) / self._keep
        self.results.survival[probe] = survival_curve(outcome.alive, since, chance)


class _Report:
    """Adds an arm's rows and records to a study's results."""

    def __init__(
        self, study: Study, probe: str, variant: str, instances: Sequence[Instance],
        deleted: Floats | None = None, kept: Floats | None = None,
    ) -> None:  # fmt: skip
        self._results, self._probe, self._variant, self._instances = study.results, probe, variant, instances
        self._ends = (deleted, kept) if deleted is not None and kept is not None else None

    def add(self, arm: str, outcome: _Outcome) -> Row:
        """The row over all facts; where there are two, one for each beside it."""
        events = outcome.alive.shape[1]
        total = self._row(arm, "all", outcome, slice(None))
        reads = outcome.hit.shape[1]
        for read in range(reads if reads > 1 else 0):
            self._row(arm, ("first", "second")[read], outcome, slice(read, read + 1))
        for row, instance in enumerate(self._instances):
            log_prob, hit, free = (tuple(each[row].tolist()) for each in (outcome.log_prob, outcome.hit, outcome.free))
            record = Record(
                self._probe, self._variant, arm, instance.key, instance.values, log_prob, hit, free, events
            )  # fmt: skip
            self._results.records.append(record)
        return total

    def _row(self, arm: str, fact: str, outcome: _Outcome, reads: slice) -> Row:
        hit, free = (list(map(all, each[:, reads].tolist())) for each in (outcome.hit, outcome.free))
        ends = self._ends if fact == "all" else None
        found = recall(hit, free, outcome.log_prob[:, reads].sum(1), ends)
        row = Row(self._probe, self._variant, arm, fact, outcome.alive.shape[1], found)
        self._results.rows.append(row)
        return row


class _Ranking:
    """Best heads, pair and triple by gain of log-probability over the deleted fact."""

    def __init__(self, forced: Callable[[Placement], _Outcome], heads: int) -> None:
        self._forced, self._heads = forced, heads
        gains = {head: self._gain(frozenset({head})) for head in range(heads)}
        self.order = sorted(gains, key=lambda head: -gains[head])

    def best_sets(self) -> list[Heads]:
        """The pairs of the best triple, best pair first, then the triple; a lone pair where there are two heads."""
        if self._heads < 2:
            return []
        pair = max(sites.pairs(self.order), key=self._gain)
        if self._heads < 3:
            return [pair]
        triple = max(sites.triples(pair, self._heads), key=self._gain)
        _, rotation = sites.scattered(triple)
        return [pair, *(other for other in rotation if other != pair), triple]

    def _gain(self, heads: Heads) -> float:
        return float(self._forced(sites.only(heads)).total.sum())


def arm_runs(job: ProbeJob, heads: int) -> Iterator[str]:
    """Labels of the arms that a study will read, searches included: what a progress bar counts."""
    some = sum(arm.name == "random" for arm in job.arms.policies) or 1
    search = heads + len(sites.pairs(range(heads))) + max(0, heads - 2)
    for spec in job.probes:
        count = {
            "planted_fact": search + heads + 8,
            "two_facts": heads + 8,
            "passcode": 1 + len(job.arms.policies),
            "restated": some * len(spec.times),
        }[spec.kind]
        yield from [spec.kind] * count


def _ends(heads: int, facts: int) -> dict[str, Placement]:
    return {"deleted": sites.nowhere(facts), "kept": sites.everywhere(heads, facts)}


def _shape(instance: Instance) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    return len(instance.tokens), instance.prompt, instance.reads
