"""A report as terminal page, Markdown and JSON: the same sheets and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from orchestrator.report import Report
from orchestrator.report_sheet import VERDICTS, Sheet


def as_text(report: Report) -> RenderableType:
    """For rich's console, at any width."""
    parts: list[RenderableType] = [Text(f"{report.title} of {report.facts['store']}", style="bold")]
    parts += [Text(line) for line in report.header]
    for sheet in report.sheets:
        parts += [Text(), Fitted(sheet)]
    parts += [Text(f"• {note}", style="dim") for note in report.notes]
    return Group(*parts)


def as_markdown(report: Report) -> str:
    """For a pull request or a notebook."""
    lines = [f"# {report.title}", "", *(f"* {line}" for line in report.header)]
    for sheet in report.sheets:
        lines += ["", f"## {sheet.title}", "", markdown_table(sheet)]
    return "\n".join([*lines, "", *(f"* {note}" for note in report.notes), ""])


def markdown_table(sheet: Sheet) -> str:
    """A sheet's rows under its column names."""
    names = [column.removeprefix(">") for column in sheet.columns]
    rule = ["---:" if column.startswith(">") else "---" for column in sheet.columns]
    return "\n".join(_line(cells) for cells in (names, rule, *sheet.rows))


def as_json(report: Report) -> dict[str, Any]:
    """For programs: fractions, not points; columns as in orchestrator.analysis_columns; null where undefined."""
    return {
        **report.facts,
        "arms": _json_rows(report.arms),
        "differences": _json_rows(report.differences),
        **{name: _json_rows(table) for name, table in report.evidence.items()},
        "notes": list(report.notes),
    }


@dataclass(frozen=True, slots=True)
class Fitted:
    """A sheet for rich's console. No number is ever cut: what does not fit beside the arm's name follows below it."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Tables of at most the console's width, as far as single columns allow."""
        yield Text(self.sheet.title, style="bold")
        for number, columns in enumerate(split(self.sheet, options.max_width)):
            if number:
                yield Text()
            yield _table(self.sheet, columns, options.max_width)


def split(sheet: Sheet, width: int) -> list[tuple[int, ...]]:
    """Columns of each part of a sheet; every part begins with the columns that name its rows."""
    keys = _keys(sheet)
    # A column takes its cells and the space before the next one.
    least = [_least(sheet, index) + 1 for index in range(len(sheet.columns))]
    parts, room = [list(keys)], width + 1 - sum(least[index] for index in keys)
    left = room
    for index in range(len(keys), len(sheet.columns)):
        if least[index] > left and len(parts[-1]) > len(keys):
            parts.append(list(keys))
            left = room
        parts[-1].append(index)
        left -= least[index]
    return [tuple(part) for part in parts]


# Words of running text may be broken from here on; numbers and names never are.
_LONGEST_WORD = 24
_NAMES = 2


def _keys(sheet: Sheet) -> tuple[int, ...]:
    """The columns that name a row: the first, and the second where it is no number."""
    return tuple(i for i, name in enumerate(sheet.columns[:_NAMES]) if i == 0 or not name.startswith(">"))


def _least(sheet: Sheet, index: int) -> int:
    """Narrowest width of a column: whole cells of names, numbers and intervals; else the longest word."""
    name = sheet.columns[index].removeprefix(">")
    cells = [row[index] for row in sheet.rows]
    if sheet.columns[index].startswith(">") or index < _NAMES:
        return max(map(cell_len, (*name.split(), *cells)))
    words = [word for cell in cells for word in _together(cell).split(" ")]
    return max(cell_len(name.split()[0]), *(min(cell_len(word), _LONGEST_WORD) for word in words or ("",)))


def _together(cell: str) -> str:
    """A verdict's mark stays beside its verdict."""
    mark, space, rest = cell.partition(" ")
    return f"{mark}_{rest}" if space and len(mark) == 1 else cell


def _table(sheet: Sheet, columns: tuple[int, ...], width: int) -> Table:
    least = {index: _least(sheet, index) for index in columns}
    whole = {
        index: max(cell_len(text) for text in (sheet.columns[index].removeprefix(">"), *(r[index] for r in sheet.rows)))
        for index in columns
    }
    gaps = len(columns) - 1
    padding = int(sum(whole.values()) + 2 * gaps < width)
    room = width - sum(least.values()) - gaps * (1 + padding) - padding
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, padding, 0, 0))
    # Room goes to headings and short texts first, so that one long text does not break all the others.
    for index in sorted(columns, key=lambda i: whole[i] - least[i]):
        more = min(room, whole[index] - least[index])
        least[index], room = least[index] + max(0, more), room - max(0, more)
    for index in columns:
        justify: JustifyMethod = "right" if sheet.columns[index].startswith(">") else "left"
        table.add_column(sheet.columns[index].removeprefix(">"), justify=justify, width=least[index], overflow="fold")
    for row in sheet.rows:
        table.add_row(*(_coloured(row[index]) for index in columns))
    return table


def _coloured(cell: str) -> Text:
    style = next((colour for mark, colour in VERDICTS.values() if cell.startswith(f"{mark} ")), "")
    return Text(cell, style="bold red" if cell == "INVALID" else style)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]
