"""What the embedded reasoner keeps of its accuracy: policy x protection x compression, from the rows of a store.

    evictbench run jobs/examples/reasoner_sweep.yaml --store STORE
    python -m infra.reasoner.table STORE                            prints the tables
    python -m infra.reasoner.table STORE --write docs/reasoner.md   puts them between the page's marks

Numbers are those of `evictbench report`: accuracy with its 95 % interval, and the difference to prompt-protected random
of the same keep, paired by problem.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.analysis import arms_table
from orchestrator.analysis_pairs import Answers
from orchestrator.analysis_sweep import sweep_table
from orchestrator.store.reader import Reader

MARKS = ("<!-- reasoner-sweep: begin -->", "<!-- reasoner-sweep: end -->")
ARM = ["policy", "protection"]


def tables(sweep: pd.DataFrame, arms: pd.DataFrame) -> str:
    """Markdown: of every task one table of accuracies, under that of the full cache, and one of differences."""
    parts = []
    for task, rows in sweep.groupby("task"):
        problems = sorted({int(count) for count in rows["problems"].dropna()})
        count = str(problems[-1]) if len(problems) == 1 else f"{problems[0]} to {problems[-1]}"
        full = arms[(arms["task"] == task) & (arms["policy"] == "full")]
        cells = [_cell(row, "accuracy", "low", "high") for row in full.to_dict("records")]
        bound = "".join(f" Full cache: {cell}." for cell in cells if cell)
        parts += [f"### {task}", "", f"Accuracy, {count} problems.{bound}", "", *_grid(rows, "accuracy low high")]
        parts += ["", "Points more than `random` with the prompt protected, at the same keep, paired by problem.", ""]
        parts += [*_grid(rows, "difference difference_low difference_high"), ""]
    return "\n".join(parts).rstrip()


def _grid(rows: pd.DataFrame, columns: str) -> Iterator[str]:
    """One line an arm, one column a keep from the largest; an arm without a value at any keep is left out."""
    value, low, high = columns.split()
    keeps = sorted({int(keep) for keep in rows["keep"].dropna()}, reverse=True)
    factor = rows.groupby("keep")["compression"].median()
    # without a full cache nobody knows how long the answers would be
    heads = [f"keep {keep}" + ("" if math.isnan(factor[keep]) else f" ({factor[keep]:.1f}x)") for keep in keeps]
    yield f"| policy | protection | {' | '.join(heads)} |"
    yield "|---|---|" + "---:|" * len(keeps)
    for (policy, protection), arm in rows.groupby(ARM, sort=False):
        if arm[value].isna().all():
            continue
        by_keep = {int(row["keep"]): _cell(row, value, low, high) for row in arm.to_dict("records")}
        yield f"| {policy} | {protection} | " + " | ".join(by_keep.get(keep, "") for keep in keeps) + " |"


def _cell(row: Mapping[Hashable, Any], value: str, low: str, high: str) -> str:
    middle, bottom, top = (float(row[name]) for name in (value, low, high))
    if math.isnan(middle):
        return ""
    if value == "difference":
        return f"{100 * middle:+.0f} [{100 * bottom:+.0f}, {100 * top:+.0f}]"
    return f"{middle:.2f} [{bottom:.2f}, {top:.2f}]"


def main() -> None:
    """Print the tables of a store, or write them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--write", type=Path, help="page that holds the two marks")
    arguments = parser.parse_args()
    reader = Reader(arguments.store)
    answers = Answers(reader)
    text = tables(sweep_table(reader, answers=answers), arms_table(reader, answers=answers))
    if arguments.write is None:
        sys.stdout.write(f"{text}\n")
        return
    page = arguments.write.read_text(encoding="utf-8")
    if any(page.count(mark) != 1 for mark in MARKS):
        sys.exit(f"{arguments.write} must hold the lines '{MARKS[0]}' and '{MARKS[1]}' once each.")
    head, _, rest = page.partition(MARKS[0])
    arguments.write.write_text(f"{head}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.partition(MARKS[1])[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
