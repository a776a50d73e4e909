"""The replication report: published numbers beside the store's, what is settled, what is still to run."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from orchestrator import figures
from orchestrator.analysis_rows import records
from orchestrator.replication.columns import Status
from orchestrator.replication.costs import campaign
from orchestrator.replication.counts import PUBLISHED_RULE, counts_table
from orchestrator.replication.probes import ProbeRun
from orchestrator.replication.published import named
from orchestrator.replication.serving import SERVING
from orchestrator.replication.table import replication_table
from orchestrator.report_formats import markdown_table
from orchestrator.report_sheet import Sheet
from orchestrator.store.reader import Reader

# Mark of each status; never colour alone.
MARKS = {Status.CONSISTENT: "✓", Status.DEVIATES: "✗", Status.BY_DESIGN: "◇", Status.NOT_RUN: "·"}

# Job files that run a published table's arms.
JOBS = {
    "accuracy.yaml": ("Table1", "Table5", "Table8"),
    "protection.yaml": ("Table2", "Table6"),
    "generation_length.yaml": ("Table7",),
    "draws_qwen3_4b_math500.yaml": ("Sec5.2/AppD", "Fig3c", "recency control"),
    "probes_qwen3_4b.yaml (evictbench probe)": ("Table3", "Fig3a", "Fig3b", "Sec5.2", "AppB"),
    "sweep_phi4_math500.yaml and sweep_qwen3_4b.yaml": ("Fig2 sweep (partial)",),
}


@dataclass(frozen=True, slots=True)
class Page:
    """A report as sentences and tables of strings."""

    title: str
    lines: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    table: pd.DataFrame


def build(reader: Reader, paper: str, store: str, probed: Sequence[ProbeRun] = ()) -> Page:
    """Compare a store, named `store`, and probe runs with a publication. Raises UserError for an unknown paper."""
    table = replication_table(reader, paper, probed)
    own, others = (table[table["third_party"].astype(bool) == third] for third in (False, True))
    arms = campaign(table)
    sheets = [_summary(own), *_counts(reader)]
    sheets += [_numbers(str(name), part) for name, part in own.groupby("table", sort=False)]
    sheets += [_numbers(f"Third party: {name}", part) for name, part in others.groupby("table", sort=False)]
    sheets += _to_run(arms)
    lines = tuple(_lines(store, own, arms))
    return Page(f"{named(paper).title}: published and measured", lines, tuple(sheets), table)


def as_markdown(page: Page) -> str:
    """For a repository or a pull request."""
    parts = [f"# {page.title}", "", *(f"* {line}" for line in page.lines)]
    for sheet in page.sheets:
        parts += ["", f"## {sheet.title}", "", markdown_table(sheet)]
    return "\n".join([*parts, ""])


def as_html(page: Page) -> str:
    """One file without scripts or foreign resources."""
    body = [f"<h1>{html.escape(page.title)}</h1>", "<ul>", *(f"<li>{html.escape(x)}</li>" for x in page.lines), "</ul>"]
    for sheet in page.sheets:
        body += [f"<h2>{html.escape(sheet.title)}</h2>", _html_table(sheet)]
    head = f"<meta charset='utf-8'><title>{html.escape(page.title)}</title><style>{_STYLE}</style>"
    return "\n".join(["<!doctype html>", f"<html lang='en'>{head}", *body, "</html>", ""])


def summary(page: Page) -> Sequence[Sheet]:
    """The tables of a short, terminal-sized answer: counts, what deviates, arms to run by model."""
    deviating = page.table[page.table["status"] == Status.DEVIATES]
    own = [sheet for sheet in page.sheets if sheet.title in (_SUMMARY, _COUNTS) or sheet.title.startswith(_HOURS)]
    return [*own[:2], *([_numbers("Deviating", deviating)] if len(deviating) else []), *own[2:]]


_SUMMARY, _COUNTS, _HOURS = "Published numbers by status", "Wins and losses by the same rule", "To run"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}"
    "table{border-collapse:collapse;font-size:13px;margin-bottom:1.5rem}td,th{border-bottom:1px solid #ddd;"
    "padding:.25rem .6rem;text-align:left;vertical-align:top}.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".consistent{background:#e3f1ea}.deviates{background:#fbe3d6}.differs{background:#eef}"
)


def _lines(store: str, own: pd.DataFrame, arms: pd.DataFrame) -> Iterator[str]:
    counts = own["status"].value_counts()
    said = ", ".join(f"{counts.get(status, 0)} {status}" for status in Status)
    yield f"Store {store}: of {len(own)} published numbers {said}."
    yield (
        "consistent: the published value lies in the interval in which a repetition on the same problems would fall, "
        "published noise included. Only equal model ids are compared."
    )
    if len(arms):
        yield (
            f"Still to run: {len(arms)} arms, about {arms['gpu_hours'].sum():,.0f} GPU-hours of one H200 at the "
            "published lengths and serving speeds."
        )
        serving = own[(own["reason"] == SERVING) & own["needs"].notna()].drop_duplicates("needs")
        yield f"Serving figures beside them: {serving['gpu_hours'].sum():,.0f} GPU-hours (evictbench bench throughput)."
        for file, tables in JOBS.items():
            yield f"jobs/paper/{file}: {', '.join(tables)}"


def _summary(own: pd.DataFrame) -> Sheet:
    table = pd.crosstab(own["table"], own["status"]).reindex(index=list(dict.fromkeys(own["table"])))
    rows = [(str(name), *(str(int(row.get(status, 0))) for status in Status)) for name, row in table.iterrows()]
    total = tuple(str(int((own["status"] == status).sum())) for status in Status)
    columns = ("published in", *(f">{status}" for status in Status))
    return Sheet(_SUMMARY, columns, (*rows, ("all", *total)))


def _counts(reader: Reader) -> Iterator[Sheet]:
    rows = tuple(
        (
            str(row["model"]),
            str(row["rule"]),
            str(row["comparisons"]),
            *(figures.number(row[name], ".0f") for name in ("behind", "ahead", "open", "incomplete")),
        )
        for row in records(counts_table(reader))
    )
    published = (("as published, three models", PUBLISHED_RULE, "60", "31", "1", "28", "0"),)
    columns = ("arms of", "rule", ">comparisons", ">behind random", ">ahead", ">open", ">unfinished")
    yield Sheet(_COUNTS, columns, (*published, *rows))


def _numbers(title: str, part: pd.DataFrame) -> Sheet:
    rows = tuple(_number(row) for row in records(part))
    columns = ("what", "metric", ">published", ">run", ">95 % interval", ">predicted", ">n", ">w/l/t", "status", "why")
    return Sheet(title, columns, rows)


def _number(row: dict[str, Any]) -> tuple[str, ...]:
    budget = "" if row["keep"] is None else f"K{row['keep']}"
    rule = {"yes": "protected", "no": "unprotected", "gain": "protected − unprotected"}.get(row["protect_prompt"], "")
    what = " ".join(part for part in (row["model"], row["task"], row["policy"], budget, rule) if part)
    status = Status(row["status"])
    size = "-" if row["problems"] is None else f"{row['problems']}×{row['samples'] or '?'}"
    signs = "-" if row["wins"] is None else f"{row['wins']}/{row['losses']}/{row['ties']}"
    return (
        what,
        row["metric"],
        row["published"],
        figures.number(row["estimate"] if row["estimate"] is not None else float("nan"), ".4g"),
        _interval(row["low"], row["high"]),
        _interval(row["predicted_low"], row["predicted_high"]),
        size,
        signs,
        f"{MARKS[status]} {status}",
        row["reason"] or row["needs"] or "",
    )


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"[{low:.4g}, {high:.4g}]"


def _to_run(arms: pd.DataFrame) -> Iterator[Sheet]:
    if arms.empty:
        return
    total = [(model, len(part), part["gpu_hours"].sum()) for model, part in arms.groupby("model", sort=False)]
    rows = tuple((str(model), str(count), f"{hours:,.0f}") for model, count, hours in total)
    yield Sheet(f"{_HOURS}, by model", ("model", ">arms", ">GPU-hours"), rows)
    each = tuple(
        (
            " ".join(str(row[name]) for name in ("model", "task", "policy")),
            "" if row["policy_params"] == "{}" else row["policy_params"],
            "-" if row["keep"] is None else f"{row['keep']} {row['protection']}",
            f"{row['problems']}×{row['samples']}",
            f"{row['tokens_per_answer']:,.0f}",
            f"{row['gpu_hours']:,.1f}",
            str(row["numbers"]),
        )
        for row in records(arms)
    )
    columns = ("arm", "parameters", ">keep, protection", ">n", ">tokens", ">GPU-hours", ">numbers")
    yield Sheet("Arms to run", columns, each)


def _html_table(sheet: Sheet) -> str:
    kinds = [" class='n'" if column.startswith(">") else "" for column in sheet.columns]
    names = [html.escape(column.removeprefix(">")) for column in sheet.columns]
    head = "".join(f"<th{kind}>{name}</th>" for kind, name in zip(kinds, names, strict=True))
    return f"<table><tr>{head}</tr>\n" + "\n".join(_html_row(row, kinds) for row in sheet.rows) + "</table>"


def _html_row(row: Sequence[str], kinds: Sequence[str]) -> str:
    status = next((mark.value for mark, sign in MARKS.items() if f"{sign} {mark}" in row), "")
    cells = "".join(f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
    return f"<tr class='{status.split(' ')[0]}'>{cells}</tr>"
