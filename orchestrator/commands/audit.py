"""`evictbench audit`: what eviction would do to your own traces, and which keep to start from."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator import models, traces
from orchestrator.audit import FACTS_THAT_SURVIVE, PROMPTS_THAT_FIT, Audit, Verdict, audit

KEEPS = (512, 1024, 2048, 4096)
INTERVAL = 64
HEADS = 8

_LEGEND = (
    "compression: cached tokens of the full cache over those kept, summed over all steps. exposed: once-stated facts "
    "that meet an event before they are used again. in a head, in any: expected share of them still cached at that "
    "moment in one given KV head, in at least one of a layer, under prompt-protected random eviction."
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", help="Count tokens by this model's tokenizer, named as in a job; without it an estimate.")
@click.option("--keep", "keeps", multiple=True, type=click.IntRange(min=1), help="Keep to judge; may be repeated.")
@click.option(
    "--interval", default=INTERVAL, show_default=True, type=click.IntRange(min=1), help="Tokens between events."
)
@click.option("--heads", type=click.IntRange(min=1), help=f"KV heads of a layer; the model's, or {HEADS}.")
@click.option("--fields", nargs=2, metavar="PROMPT ANSWER", help="Fields that hold them; usual names are found.")
@click.option("--format", "style", type=click.Choice(["table", "json"]), default="table", show_default=True)
def command(
    file: Path,
    model: str | None,
    keeps: tuple[int, ...],
    interval: int,
    heads: int | None,
    fields: tuple[str, str] | None,
    style: str,
) -> None:
    """Read FILE (JSON Lines; a prompt and an output, or chat messages, in each line) and say what each keep would cost.

    Counts prompts that do not fit, traces that never evict, and numbers and identifiers that an answer states once and
    uses again. Nothing runs, and nothing is written.
    """
    resolved = models.resolve(model) if model else None
    starts = traces.tokenized(resolved) if resolved else traces.estimated
    found = traces.read(file, starts, fields)
    heads = heads or (resolved.n_kv_heads if resolved else HEADS)
    result = audit(found, sorted(set(keeps or KEEPS)), interval, heads)
    if style == "json":
        click.echo(json.dumps(as_json(result, interval, heads, model), indent=1))
        return
    console = Console()
    console.print(_facts(result, heads, model))
    console.print(_table(result))
    console.print(Text(_LEGEND, style="dim"))
    console.print(_advice(result, interval))


def as_json(result: Audit, interval: int, heads: int, model: str | None) -> dict[str, Any]:
    """The same for programs; tokens and shares."""
    return {
        "traces": len(result.prompts),
        "tokens_counted_by": model,
        "interval": interval,
        "kv_heads": heads,
        "prompt_tokens": _quantiles(result.prompts),
        "output_tokens": _quantiles(result.outputs),
        "facts_stated": result.stated,
        "facts_stated_once_and_used_again": len(result.gaps),
        "gap_tokens": _quantiles(result.gaps),
        "keeps": [_verdict(verdict) for verdict in result.verdicts],
        "suggested": _verdict(result.suggested) if result.suggested else None,
    }


def _verdict(verdict: Verdict) -> dict[str, float | None]:
    facts = dataclasses.asdict(verdict)
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in facts.items()}


def _quantiles(values: Sequence[int]) -> dict[str, float] | None:
    if not values:
        return None
    marks = np.quantile(values, [0.0, 0.5, 0.9, 1.0])
    return dict(zip(("min", "median", "p90", "max"), map(float, marks), strict=True))


def _facts(result: Audit, heads: int, model: str | None) -> Text:
    counted = f"by the tokenizer of {model}" if model else "estimated; name --model for exact ones"
    lines = [f"{len(result.prompts)} traces; tokens {counted}; {heads} KV heads a layer"]
    for name, values in (("prompt", result.prompts), ("answer", result.outputs), ("gap", result.gaps)):
        if quantiles := _quantiles(values):
            shown = ", ".join(f"{mark} {value:,.0f}" for mark, value in quantiles.items())
            lines.append(f"{name} tokens: {shown}")
    lines.append(
        f"{result.stated:,} numbers and identifiers stated in answers; {len(result.gaps):,} of them stated once and "
        "used again (gap: tokens between)"
    )
    return Text("\n".join(lines) + "\n")


def _table(result: Audit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("keep", "prompts unfit", "never evict", "compression", "exposed", "in a head", "in any"):
        table.add_column(name, justify="right")
    for each in result.verdicts:
        shares = (each.exposed, each.per_head, each.in_any_head) if result.gaps else (math.nan,) * 3
        table.add_row(
            f"{each.keep:,}", _percent(each.unfit), _percent(each.never), f"{each.compression:.2f}x",
            *map(_percent, shares),
        )  # fmt: skip
    return table


def _advice(result: Audit, interval: int) -> Text:
    rule = (
        f"{PROMPTS_THAT_FIT:.0%} of the prompts fit and {FACTS_THAT_SURVIVE:.0%} of the facts are expected in some head"
    )
    if result.suggested is None:
        return Text(
            f"\nNo keep suggested: none that evicts satisfies the rule ({rule}). Traces are short, or come back to "
            "facts from too far away.",
            style="yellow",
        )
    chosen = result.suggested
    return Text(
        f"\nStart from keep {chosen.keep:,} with interval {interval}: the smallest at which {rule}. Compression "
        f"{chosen.compression:.2f}x. This is arithmetic on text, no measurement: run your problems with a `jsonl` task "
        "to see accuracy.",
        style="green",
    )


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"
