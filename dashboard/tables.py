"""Tables that document themselves: real HTML tables with a hatched style for unfinished cells, and their exports.

Every text is escaped here, so callers pass plain strings, also hostile ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd


@dataclass(frozen=True, slots=True)
class Cell:
    """One table cell.

    kind  CSS classes: `incomplete`, `missing`, `text` (left-aligned) or a verdict
    note  small second line
    """

    text: str
    kind: str = ""
    hover: str = ""
    link: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One table row: its label, its cells and a kind (`full`, `reference`)."""

    label: str
    cells: Sequence[Cell]
    kind: str = ""
    note: str = ""


MISSING = Cell("–", "missing", "not run")


def render(corner: str, columns: Sequence[tuple[str, str]], rows: Sequence[Row]) -> str:
    """HTML of a table; columns are (group, name) and equal neighbouring groups share one heading.

    A table without groups ("" everywhere) has one heading row. Headings stand over their cells: left over `text`.
    """
    groups = _runs([group for group, _ in columns])
    grouped = any(group for group, _ in groups)
    depth = 2 if grouped else 1
    parts = ['<div class="eb-scroll"><table class="eb-table"><thead><tr>']
    parts.append(f'<th class="eb-corner" rowspan="{depth}">{escape(corner)}</th>')
    if grouped:
        parts += [f'<th colspan="{span}" class="eb-group">{escape(group)}</th>' for group, span in groups]
        parts.append("</tr><tr>")
    left = [bool(rows) and "text" in rows[0].cells[place].kind.split() for place in range(len(columns))]
    parts += [
        f'<th class="{"text" if is_left else ""}">{escape(name)}</th>'
        for (_, name), is_left in zip(columns, left, strict=True)
    ]
    parts.append("</tr></thead><tbody>")
    parts += [_row(row) for row in rows]
    parts.append("</tbody></table></div>")
    return "".join(parts)


def _row(row: Row) -> str:
    cells = "".join(_cell(cell) for cell in row.cells)
    return f'<tr class="{escape(row.kind)}"><th scope="row">{escape(row.label)}{_note(row.note)}</th>{cells}</tr>'


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.link:
        text = f'<a href="{escape(cell.link)}">{text}</a>'
    hover = f' title="{escape(cell.hover)}"' if cell.hover else ""
    return f'<td class="{escape(cell.kind)}"{hover}>{text}{_note(cell.note)}</td>'


def _note(text: str) -> str:
    return f'<span class="eb-note">{escape(text)}</span>' if text else ""


def _runs(values: Sequence[str]) -> list[tuple[str, int]]:
    """Consecutive equal values with their counts."""
    runs: list[tuple[str, int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1] = (value, runs[-1][1] + 1)
        else:
            runs.append((value, 1))
    return runs


def markdown(frame: pd.DataFrame) -> str:
    """Pipe table of a frame of display strings; pipes and line ends in values are escaped."""

    def line(values: Sequence[object]) -> str:
        cells = (str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for value in values)
        return "| " + " | ".join(cells) + " |"

    head = [line(list(frame.columns)), "|" + " --- |" * len(frame.columns)]
    return "\n".join([*head, *(line(list(values)) for values in frame.itertuples(index=False))]) + "\n"
