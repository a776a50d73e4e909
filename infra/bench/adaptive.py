"""`make adaptive`: what verdicts of jobs that end early are worth, by simulation; writes docs/adaptive.md.

Simulated (model, task)s of the published sizes, five arms beside one reference, end where `samples: {min, max,
until_width}` ends them and are judged as reports judge them: by the product's pairing, intervals, widths and levels.
Deterministic. Exit status 1 where false verdicts exceed the nominal level by more than Monte-Carlo error. About three
minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from orchestrator.stats.paired import Paired, pair
from orchestrator.stats.sequential import between, schedule, width
from orchestrator.stats.verdict import Rule, Verdict, judge

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adaptive.md"
REPEATS = 600
NOMINAL = 0.05
ARMS = 5
# Standard errors of a Monte-Carlo share.
TOLERANCE = 3.0

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Design:
    """A task of a published size under `samples: {min, max, until_width}`; width in points."""

    problems: int
    least: int
    most: int
    width: float
    accuracy: float

    @property
    def name(self) -> str:
        """`60 problems, {min: 2, max: 16, until_width: 10}`."""
        return f"{self.problems} problems, {{min: {self.least}, max: {self.most}, until_width: {self.width:g}}}"


DESIGNS = (
    Design(30, 2, 16, 15.0, 0.55),
    Design(60, 2, 16, 10.0, 0.55),
    Design(198, 1, 8, 8.0, 0.60),
    Design(500, 1, 4, 4.0, 0.90),
)
# Points by which every arm is below the reference; the first is the null.
EFFECTS = (0.0, 5.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulated (model, task): shares of its arms.

    ended    samples per problem at its end
    called   better or worse as reports say it: at the looks' levels while it goes on, at the full level at its end
    peeked   the same at 5 % at every look until the end, the mistake
    fixed    at 5 % after `most` samples, the design that saves nothing
    missed   the 95 % interval at the end leaves the true difference out
    """

    ended: int
    called: float
    peeked: float
    fixed: float
    missed: float


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm at a look; interim: called at the level of the look, peeked: at 5 %."""

    paired: Paired
    interim: bool
    peeked: bool

    @classmethod
    def of(cls, paired: Paired, alpha: float) -> Arm:
        """Test once at both levels."""
        return cls(paired, settles(paired, alpha), settles(paired, NOMINAL))


@dataclass(frozen=True, slots=True)
class Line:
    """Means over the simulated campaigns of one design and effect."""

    design: Design
    effect: float
    repeats: int
    called: float
    error: float
    peeked: float
    fixed: float
    missed: float
    saved: float
    ended: dict[int, float]


def main() -> None:
    """Simulate, print and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args()
    lines = []
    for design in DESIGNS:
        for effect in EFFECTS:
            lines.append(measure(design, effect, options.repeats))
            called, saved = lines[-1].called, lines[-1].saved
            print(f"{design.name}, {effect:g} points: {called:.2%} called, {saved:.0%} saved", flush=True)
    options.out.write_text(page(lines), encoding="utf-8")
    print(f"wrote {options.out}")
    bad = [line for line in lines if not line.effect and line.called > NOMINAL + TOLERANCE * line.error]
    for line in bad:
        print(f"more false verdicts than {NOMINAL:.0%}: {line.design.name}: {line.called:.2%}", file=sys.stderr)
    sys.exit(1 if bad else 0)


def measure(design: Design, effect: float, repeats: int) -> Line:
    """Simulate one design."""
    found = [outcome(design, answers, effect / 100) for answers in campaigns(design, effect / 100, repeats)]
    called = np.array([each.called for each in found])
    ended = np.array([each.ended for each in found])
    return Line(
        design, effect, repeats,
        called=float(called.mean()),
        error=float(called.std(ddof=1) / math.sqrt(repeats)),
        peeked=float(np.mean([each.peeked for each in found])),
        fixed=float(np.mean([each.fixed for each in found])),
        missed=float(np.mean([each.missed for each in found])),
        saved=float(1 - ended.mean() / design.most),
        ended={look: float((ended == look).mean()) for look in between(design.least, design.most)},
    )  # fmt: skip


def outcome(design: Design, answers: Counts, effect: float) -> Outcome:
    """Run one (model, task) to its end. answers [arms + 1, problems, most], the reference first."""
    looks = between(design.least, design.most)
    levels = {look.samples: look.alpha for look in schedule(looks, design.most)}
    seen: list[list[Arm]] = []
    for look in looks:
        seen.append([Arm.of(paired_at(arm, answers[0], look), levels[look]) for arm in answers[1:]])
        if all(width(arm.paired) <= design.width for arm in seen[-1]):
            break
    ended = looks[len(seen) - 1]
    final = [look.alpha for look in schedule(looks[: len(seen)], ended)]
    # Whoever reads a report on the way may quote it: a verdict shown once counts, whatever the end says.
    shown = [
        [arm.interim or settles(arm.paired, alpha) for arm in arms] for arms, alpha in zip(seen, final, strict=True)
    ]
    last = [paired_at(arm, answers[0], design.most) for arm in answers[1:]] if ended < design.most else None
    return Outcome(
        ended,
        called=float(np.any(shown, axis=0).mean()),
        peeked=float(np.any([[arm.peeked for arm in arms] for arms in seen], axis=0).mean()),
        fixed=float(np.mean([settles(p, NOMINAL) for p in last] if last else [arm.peeked for arm in seen[-1]])),
        missed=float(np.mean([misses(arm.paired, -effect) for arm in seen[-1]])),
    )


def settles(paired: Paired, alpha: float) -> bool:
    """Whether a report at this level says better or worse."""
    return judge(paired, Rule(alpha=alpha)).verdict in (Verdict.BETTER, Verdict.WORSE)


def misses(paired: Paired, truth: float) -> bool:
    """Whether the 95 % interval leaves the true difference out."""
    low, high = judge(paired).interval
    return not low <= truth <= high


def paired_at(mine: Counts, theirs: Counts, samples: int) -> Paired:
    """Pairing of the first `samples` answers of each problem."""
    counts = np.full(len(mine), samples)
    return pair(mine[:, :samples].sum(1), counts, theirs[:, :samples].sum(1), counts)


def campaigns(design: Design, effect: float, repeats: int) -> Iterator[Counts]:
    """Answers [arms + 1, problems, most], 1 right; new problems every time. Solving rates are bimodal: Beta with
    a + b = 1. An arm below the reference loses the same share of every rate."""
    rng = np.random.default_rng([design.problems, design.most, round(1000 * effect)])
    scale = np.full((ARMS + 1, 1, 1), 1 - effect / design.accuracy)
    scale[0] = 1.0
    for _ in range(repeats):
        rates = rng.beta(design.accuracy, 1 - design.accuracy, (1, design.problems, 1))
        yield (rng.random((ARMS + 1, design.problems, design.most)) < scale * rates).astype(np.int64)


def page(lines: Sequence[Line]) -> str:
    """The Markdown page."""
    text = [
        "# Samples that stop early, by simulation",
        "",
        f"Written by `make adaptive` ({lines[0].repeats:,} simulated (model, task)s per line, {ARMS} arms beside one "
        "reference, which share its answers). With `samples: {min, max, until_width}` all arms of a (model, task) get "
        "more samples together until every 95 % interval is narrower than `until_width` points. That rule sees widths "
        "and no signs. What a report shows while sampling goes on is tested at the level of its look "
        "(O'Brien-Fleming spending up to `max`); what stands at the end spends the full 5 %, over the looks up to "
        "there. A verdict counts as given if any report up to the end showed it.",
        "",
        "| design | arms below the reference by | verdicts | 5 % at every look | fixed at max | interval misses "
        "| saved | ends after |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for line in lines:
        ends = ", ".join(f"{look}: {share:.0%}" for look, share in line.ended.items() if share)
        effect = "0 (false verdicts)" if not line.effect else f"{line.effect:g} points (power)"
        shares = (
            f"{line.called:.1%} ± {line.error:.1%}",
            *(f"{x:.1%}" for x in (line.peeked, line.fixed, line.missed)),
        )
        text.append(f"| {line.design.name} | {effect} | {' | '.join(shares)} | {line.saved:.0%} | {ends} |")
    text += [
        "",
        "verdicts: share of arms called better or worse, with its Monte-Carlo standard error; nominal 5 % where "
        "nothing differs. 5 % at every look: the same without spending, the mistake. fixed at max: one test after "
        "`max` samples. interval misses: the 95 % interval at the end leaves the true difference out, nominal 5 %. "
        "saved: samples against `max`. Problems are drawn anew every time; solving rates are bimodal (Beta, a + b = "
        "1).",
        "",
    ]
    return "\n".join(text)


if __name__ == "__main__":
    main()
