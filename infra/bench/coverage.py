"""`make coverage`: how often the intervals that decide contain the truth, by simulation; writes docs/coverage.md.

Simulated campaigns of the published sizes go through the product's own pairing, intervals and levels. Deterministic:
every size and scenario has its own seed. Exit status 1 where a deciding interval or the looks are off nominal by more
than Monte-Carlo error. About five minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.sequential import schedule
from orchestrator.stats.signs import sign_test
from orchestrator.stats.verdict import (
    FEWEST_NON_TIES,
    OURS,
    IntervalKind,
    Rule,
    deciding_kind,
    excludes_zero,
    interval,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coverage.md"
REPEATS = 10_000
NOMINAL = 0.05
# Standard errors of a Monte-Carlo share; ten shares are checked, so two would fail by chance in every second run.
TOLERANCE = 3.0

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Size:
    """A published size: problems, answers per problem, accuracy, looks in answers per problem."""

    problems: int
    samples: int
    accuracy: float
    looks: tuple[int, ...]

    @property
    def name(self) -> str:
        """`60 × 16`."""
        return f"{self.problems} × {self.samples}"


SIZES = (
    Size(30, 16, 0.55, (2, 4, 8)),
    Size(60, 16, 0.55, (2, 4, 8)),
    Size(198, 4, 0.60, (1, 2)),
    Size(383, 4, 0.75, (1, 2)),
    Size(500, 2, 0.90, (1,)),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """How arm B's solving rates come from arm A's: replaced for some problems, then scaled."""

    name: str
    replaced: float
    scale: float


SCENARIOS = (
    Scenario("same rates", 0.0, 1.0),
    Scenario("a fifth of the problems redrawn, 5 % worse", 0.2, 0.95),
)


@dataclass(frozen=True, slots=True)
class Errors:
    """Shares of simulated campaigns in which an interval missed the true difference, or a rule called one."""

    size: Size
    scenario: Scenario
    decides: IntervalKind
    deciding: float
    t: float
    percentile: float
    verdict: float
    sign: float


def main() -> None:
    """Simulate, print and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    errors = []
    for size in SIZES:
        for scenario in SCENARIOS:
            errors.append(measure(size, scenario, options.repeats))
            print(f"{size.name}, {scenario.name}: {errors[-1].deciding:.2%} missed", flush=True)
    looked = [(size, *looks(size, options.repeats)) for size in SIZES]
    options.out.write_text(page(errors, looked, options.repeats), encoding="utf-8")
    print(f"wrote {options.out}")
    bound = TOLERANCE * standard_error(options.repeats)
    bad = [f"{e.size.name}, {e.scenario.name}: {e.deciding:.2%}" for e in errors if abs(e.deciding - NOMINAL) > bound]
    bad += [f"{size.name}, looks: {rate:.2%}" for size, rate, _ in looked if rate > NOMINAL + bound]
    for line in bad:
        print(f"off nominal by more than {bound:.2%}: {line}", file=sys.stderr)
    sys.exit(1 if bad else 0)


def measure(size: Size, scenario: Scenario, repeats: int) -> Errors:
    """Error rates of one size and scenario."""
    truth = size.accuracy * (1 - scenario.scale)
    missed = dict.fromkeys((*IntervalKind, "deciding", "verdict", "sign"), 0)
    for answers_a, answers_b in campaigns(size, scenario, repeats):
        paired = paired_at(answers_a, answers_b, size.samples)
        found = {kind: interval(paired, kind, 1 - OURS.alpha) for kind in IntervalKind}
        for kind, (low, high) in found.items():
            missed[kind] += not low <= truth <= high
        decisive = found[deciding_kind(paired, OURS)]
        missed["deciding"] += not decisive[0] <= truth <= decisive[1]
        wins, losses, _ = paired.signs
        missed["verdict"] += wins + losses >= FEWEST_NON_TIES and excludes_zero(decisive)
        missed["sign"] += sign_test(wins, losses) < NOMINAL
    shares = {name: count / repeats for name, count in missed.items()}
    return Errors(
        size,
        scenario,
        deciding_kind(paired, OURS),
        *(shares[name] for name in ("deciding", IntervalKind.T, IntervalKind.PERCENTILE, "verdict", "sign")),
    )


def looks(size: Size, repeats: int) -> tuple[float, float]:
    """False positives when stopping at the first significant look: at the looks' levels, and at 5 % each time."""
    plan = schedule(size.looks, size.samples)
    spent = peeked = 0
    for answers_a, answers_b in campaigns(size, SCENARIOS[0], repeats):
        pairs = [paired_at(answers_a, answers_b, look.samples) for look in plan]
        spent += any(significant(paired, look.alpha) for paired, look in zip(pairs, plan, strict=True))
        peeked += any(significant(paired, NOMINAL) for paired in pairs)
    return spent / repeats, peeked / repeats


def significant(paired: Paired, alpha: float) -> bool:
    """Whether the deciding interval at this level excludes 0."""
    rule = Rule(alpha=alpha)
    return excludes_zero(interval(paired, deciding_kind(paired, rule), 1 - alpha))


def paired_at(answers_a: Counts, answers_b: Counts, samples: int) -> Paired:
    """Pairing of the first `samples` answers of each problem."""
    counts = np.full(len(answers_a), samples)
    return pair(answers_a[:, :samples].sum(1), counts, answers_b[:, :samples].sum(1), counts)


def campaigns(size: Size, scenario: Scenario, repeats: int, block: int = 500) -> Iterator[tuple[Counts, Counts]]:
    """Answers [problems, samples] of both arms, 1 right; new problems every time. Solving rates are bimodal:
    Beta with a + b = 1."""
    rng = np.random.default_rng([size.problems, size.samples, SCENARIOS.index(scenario)])
    law = (size.accuracy, 1 - size.accuracy)
    for start in range(0, repeats, block):
        shape = (min(block, repeats - start), size.problems, 1)
        rate_a = rng.beta(*law, shape)
        redrawn = rng.random(shape) < scenario.replaced
        rate_b = scenario.scale * np.where(redrawn, rng.beta(*law, shape), rate_a)
        draws = ((rng.random((*shape[:2], size.samples)) < rate).astype(np.int64) for rate in (rate_a, rate_b))
        yield from zip(*draws, strict=True)


def standard_error(repeats: int) -> float:
    """Of a share of 5 %."""
    return math.sqrt(NOMINAL * (1 - NOMINAL) / repeats)


def page(errors: list[Errors], looked: list[tuple[Size, float, float]], repeats: int) -> str:
    """The Markdown page."""
    lines = [
        "# Coverage of the intervals, by simulation",
        "",
        f"Written by `make coverage` ({repeats:,} simulated campaigns per line, Monte-Carlo standard error "
        f"{100 * standard_error(repeats):.2f} points). Nominal error: 5 %. The interval that decides is Student's t on "
        "per-problem differences below 100 problems and the exact percentile interval from there on. Problems are "
        "drawn anew every time; solving rates are bimodal (Beta, a + b = 1).",
        "",
        "| problems × answers | arm B against A | decides | its error | t | percentile | false verdicts | sign test |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for e in errors:
        false = (_percent(e.verdict), _percent(e.sign)) if e.scenario.scale == 1 else ("-", "-")
        shares = (_percent(e.deciding), _percent(e.t), _percent(e.percentile), *false)
        lines.append(f"| {e.size.name} | {e.scenario.name} | {e.decides.value} | {' | '.join(shares)} |")
    lines += [
        "",
        "its error, t, percentile: share of campaigns whose interval misses the true difference. false verdicts: "
        f"better or worse between equal arms (at least {FEWEST_NON_TIES} problems that differ).",
        "",
        "## Looks",
        "",
        "Equal arms, stopped at the first look that is significant: at the levels that O'Brien-Fleming spending gives "
        "each look, and at 5 % each time.",
        "",
        "| problems × answers | looks after | levels 1 − α | false positives | at 5 % each look |",
        "| --- | --- | --- | ---: | ---: |",
    ]
    for size, spent, peeked in looked:
        plan = schedule(size.looks, size.samples)
        after = ", ".join(str(look.samples) for look in plan)
        alphas = ", ".join(f"1 − {look.alpha:.2g}" for look in plan)
        lines.append(f"| {size.name} | {after} | {alphas} | {_percent(spent)} | {_percent(peeked)} |")
    return "\n".join([*lines, ""])


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


if __name__ == "__main__":
    main()
