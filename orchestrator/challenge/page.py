"""The one-page verdict of a challenge, as sentences and sheets of strings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator import figures
from orchestrator.challenge.design import Challenger, Setting
from orchestrator.challenge.fit import Fit
from orchestrator.challenge.verdict import CHALLENGER, RANDOM, Outcome, conclusion
from orchestrator.report_formats import markdown_table
from orchestrator.report_notes import model_facts
from orchestrator.report_sheet import Sheet, marked
from orchestrator.stats.throughput import log_interval


@dataclass(frozen=True, slots=True)
class Tax:
    """Seconds of one event of the challenger and of random, [rounds] each, in turn; bytes beyond the cache itself.

    extra_bytes  what the challenger's needs hold per request beside its keys and values
    equal_keep   keep at which random would use as many bytes
    """

    challenger: Sequence[float]
    random: Sequence[float]
    extra_bytes: int
    equal_keep: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that the page says."""

    challenger: Challenger
    where: Setting
    tuning: Sequence[Outcome]
    test: Sequence[Outcome]
    fit: Fit
    tax: Tax
    probes: Sheet | None
    probes_note: str


def lines(found: Verdict) -> Iterator[str]:
    """The conclusion, the conditions, what is still needed, what it costs."""
    yield from conclusion(found.test)
    where = found.where
    yield (
        f"Model {where.model}, task {where.task}, keep {where.keep}, interval {where.interval}, prompt protected in "
        f"every arm; {where.problems} test problems × {where.samples}, {where.tuning} tuning problems apart."
    )
    yield (
        "Nulls: matched ages evicts at random, but tokens of each age last as long as under the challenger and heads "
        "agree as much; permuted scores shuffles the challenger's scores among tokens of about one age."
    )
    yield from _needed(found.test)
    yield from _tax(found.tax, where)
    any_head, alone = (figures.percent(share) for share in (found.fit.held_by_any, found.fit.independent))
    yield (
        f"Nulls fitted on {found.fit.rows} traces of the tuning split: head overlap {found.fit.overlap:.2f} (some head "
        f"holds {any_head} of the evictable tokens; {alone} if each drew for itself)."
    )
    if found.probes_note:
        yield found.probes_note
    yield from model_facts([where.model])


def sheets(found: Verdict) -> Iterator[Sheet]:
    """Comparisons on the test split, the tuning split beside it, probes."""
    yield _comparisons("On the test split: paired, by problem", found.test)
    yield _comparisons("On the tuning split, which decides nothing", found.tuning)
    if found.probes is not None:
        yield found.probes


def as_markdown(found: Verdict) -> str:
    """For a pull request or a paper's appendix."""
    parts = [f"# Challenge: {found.challenger.title}", "", *(f"* {line}" for line in lines(found))]
    for sheet in sheets(found):
        parts += ["", f"## {sheet.title}", "", markdown_table(sheet)]
    return "\n".join([*parts, ""])


def _comparisons(title: str, found: Sequence[Outcome]) -> Sheet:
    sizes = {outcome.result.n_problems for outcome in found}
    several, rows = len(sizes) > 1, []
    for outcome in found:
        result, judgement = outcome.result, outcome.result.judgement
        rows.append(
            (
                outcome.arm,
                outcome.against,
                figures.points(outcome.accuracy),
                figures.points(outcome.other),
                figures.points(result.difference, signed=True),
                figures.interval(*judgement.interval),
                marked(judgement.verdict, judgement.reason),
                *([str(result.n_problems)] if several else []),
                f"{result.wins}/{result.losses}/{result.ties}",
                figures.p_value(result.p_signflip),
            )
        )
    names = ("arm", "against", ">accuracy", ">other", ">points", ">95 % interval", "verdict")
    more = (*([">n"] if several else []), ">won/ lost/ tied", ">flip p")
    return Sheet(title if several or not sizes else f"{title}, n {sizes.pop()}", (*names, *more), tuple(rows))


def _needed(found: Sequence[Outcome]) -> Iterator[str]:
    for outcome in found:
        if (outcome.arm, outcome.against) != (CHALLENGER, RANDOM) or outcome.result.judgement.verdict != "unresolved":
            continue
        result = outcome.result
        if result.problems_needed is None:
            yield "No difference was measured, so no number of samples can be named that would settle one."
            continue
        text = f"A difference as large as measured would be settled by {result.problems_needed:,} problems"
        if result.sample_factor is not None:
            text += f", or by {result.sample_factor:.1f} times the samples on these"
        yield f"{text} (80 % power); this size detects {figures.points(result.detectable)} points."


def _tax(tax: Tax, where: Setting) -> Iterator[str]:
    if tax.reason:
        yield f"Tax: not measured ({tax.reason})."
    else:
        ratio = np.log(np.asarray(tax.challenger) / np.asarray(tax.random))
        low, high = log_interval(ratio)
        per_token = 1e6 * (np.median(tax.challenger) - np.median(tax.random)) / where.interval
        added = f"{per_token:+.1f} µs per token of a request" if low > 1 or high < 1 else "not told apart from it"
        yield (
            f"Tax of scoring, on this machine: an event costs {math.exp(ratio.mean()):.2f} times random's "
            f"[{low:.2f}, {high:.2f}], {added} (torch, {len(ratio)} rounds in turn)."
        )
    if tax.extra_bytes:
        yield (
            f"Bytes: equal keep is not equal memory. The challenger holds {tax.extra_bytes:,} bytes a request beside "
            f"its cache; with as many, random could keep {tax.equal_keep}."
        )
    else:
        yield "Bytes: the same as random's at the same keep."
