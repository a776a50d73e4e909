"""The parts that a page is made of, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import altair as alt
import pandas as pd

from dashboard import frames, tables, theme

HOW_MARKS = (theme.INCOMPLETE, "unfinished: hatched, never in a verdict")


@dataclass(frozen=True)
class Charts:
    """Charts beside each other; `alt` of each is read to those who cannot see it. caption: how to read them."""

    charts: Sequence[tuple[str, alt.LayerChart]]
    caption: str = ""


@dataclass(frozen=True)
class Table:
    """A table as HTML, and the same numbers as a flat frame for export under `name`.

    legend: glyphs with their meanings; note: a sentence after them
    """

    html: str
    export: pd.DataFrame
    name: str
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""


@dataclass(frozen=True)
class Note:
    """A sentence set apart: why something is missing, and what to do."""

    text: str


@dataclass(frozen=True)
class Heading:
    """Title of a part of the page."""

    text: str


Block = Charts | Table | Note | Heading


@dataclass(frozen=True)
class Content:
    """A page: its name, the question it answers, and its parts."""

    title: str
    question: str
    blocks: Sequence[Block] = field(default_factory=list)


def left_out(panels: Sequence[frames.Panel], most: int) -> str:
    """What a caption says of models and tasks that are not drawn; empty where all are."""
    more = len(panels) - most
    return f" {most} of {len(panels)} models and tasks are drawn: choose others in the sidebar." if more > 0 else ""


def verdict_legend() -> list[tuple[str, str]]:
    """Meaning of the verdict marks and of hatching."""
    return [*((mark.glyph, mark.text) for name, mark in theme.VERDICTS.items()), HOW_MARKS]


def arm_rows(
    table: pd.DataFrame, columns: Sequence[str], cells: Sequence[Sequence[tables.Cell]], kinds: Sequence[str]
) -> str:
    """HTML of one row per line of a labelled frame; model, task and budget have a column where there are several."""
    where = [
        (title, name)
        for title, name in (("Model · task", "panel_title"), ("Budget", "budget"))
        if table[table[name] != ""][name].nunique() > 1
    ]
    rows = [
        tables.Row(
            frames.short_label(row["arm"], row),
            [*(tables.Cell(row[name], "text") for _, name in where), *mine],
            kind,
            row["rule"],
        )
        for (_, row), mine, kind in zip(table.iterrows(), cells, kinds, strict=True)
    ]
    return tables.render("Arm", [("", name) for name in [*(title for title, _ in where), *columns]], rows)


def verdict_cell(verdict: str, reason: str, complete: bool, done: str = "unfinished") -> tables.Cell:
    """Mark and words of a verdict; an unfinished comparison is hatched and has none."""
    if not complete:
        return tables.Cell(f"{theme.INCOMPLETE} {done}", "text incomplete", "Unfinished: no verdict yet")
    mark = theme.VERDICTS[verdict]
    return tables.Cell(f"{mark.glyph} {mark.text}", f"text {verdict}", note=reason)
