"""A report as terminal page, Markdown and JSON: the same sheets and notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.report import Report
from orchestrator.report_sheet import VERDICTS, Sheet


def as_text(report: Report) -> RenderableType:
    """For rich's console; readable from 100 columns on."""
    parts: list[RenderableType] = [Text(f"{report.title}, store {report.facts['store']}", style="bold")]
    parts += [Text(line) for line in report.header]
    for sheet in report.sheets:
        parts += [Text(), as_rich(sheet)]
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


def as_rich(sheet: Sheet) -> Table:
    """A sheet for rich's console."""
    table = Table(title=sheet.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False)
    table.padding = (0, 1, 0, 0)
    for index, column in enumerate(sheet.columns):
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, no_wrap=index < 2 or "interval" in column)
    for row in sheet.rows:
        table.add_row(*(_coloured(cell) for cell in row))
    return table


def _coloured(cell: str) -> Text:
    style = next((colour for mark, colour in VERDICTS.values() if cell.startswith(f"{mark} ")), "")
    return Text(cell, style="bold red" if cell == "INVALID" else style)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _json_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]
