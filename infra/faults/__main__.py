"""`python -m infra.faults`: storms by seed range, and the table of docs/faults.md."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table

from infra.faults.storm import Tally, storms


@click.command()
@click.option("--seeds", default="0:4", show_default=True, help="Range FIRST:END of storms; each is one campaign.")
@click.option("--backend", type=click.Choice(["local", "ray"]), default="local", show_default=True)
@click.option("--faults", default=0, help="Stop after this many counted faults; 0 runs all seeds.")
def main(seeds: str, backend: str, faults: int) -> None:
    """Run storms until the seeds or the wanted number of faults are done. Exit status 1 when anything went wrong."""
    first, _, end = seeds.partition(":")
    console, tally = Console(width=140), Tally()

    def show(seed: int, tally: Tally) -> None:
        total = sum(tally.counted.values())
        state = "clean" if tally.clean else f"BROKEN: {tally.broken[-1]}"
        console.print(f"seed {seed}: {total} faults counted, {tally.rows:,} rows, {tally.seconds:,.0f} s, {state}")

    for seed in range(int(first), int(end)):
        storms([seed], backend, tally, show)
        if faults and sum(tally.counted.values()) >= faults:
            break
    console.print(table(tally, backend))
    console.print(summary(tally))
    for line in tally.broken:
        console.print(line, style="red")
    sys.exit(0 if tally.clean else 1)


def table(tally: Tally, backend: str) -> Table:
    """Faults by kind."""
    made = Table("fault", "counted", title=f"{backend}: {sum(tally.counted.values())} faults", box=None)
    for kind, number in sorted(tally.counted.items()):
        made.add_row(kind, str(number))
    return made


def summary(tally: Tally) -> str:
    """One paragraph of figures."""
    repeated = tally.assigned - tally.chunks
    return (
        f"{tally.campaigns} campaigns, {tally.rows:,} rows: {tally.lost} lost, {tally.doubled} doubled, "
        f"{tally.ungraded} ungraded; {tally.hung} hung, {tally.leaked} processes left. {tally.assigned:,} chunks were "
        f"handed out for {tally.chunks:,} ({repeated:,} again), over the bound in {tally.overworked} campaigns. "
        f"{tally.idle} strikes found nothing in flight and do not count. {tally.seconds / 60:.1f} min."
    )


if __name__ == "__main__":
    main()
