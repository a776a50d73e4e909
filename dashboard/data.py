"""Cached access to a store: everything the pages read goes through here.

Aggregates are kept per store generation (`stamp`); texts are fetched by row id and never kept. Imports no torch, vllm
or ray (contracts.md section 2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import frames, guard, theme
from orchestrator import analysis, report_notes, target
from orchestrator.analysis_lengths import lengths_table
from orchestrator.analysis_pairs import Answers
from orchestrator.analysis_protection import protection_table
from orchestrator.analysis_rows import cells_of
from orchestrator.analysis_sweep import sweep_table
from orchestrator.errors import UserError
from orchestrator.replication.table import replication_table
from orchestrator.stats import survival
from orchestrator.store import aggregates
from orchestrator.store import throughput as throughput_rows
from orchestrator.store.campaign import Campaign
from orchestrator.store.paths import StorePaths
from orchestrator.store.reader import Reader

# What of aggregates.origins tells how a row was made.
MADE_BY = ("engine_kind", "gpu", "node", "runner", "graph_mode", "git_revision")

# How often a busy dashboard looks for new files, at most.
REFRESH_SECONDS = 3


@st.cache_resource(max_entries=4, show_spinner=False)
def _reader(store: str) -> Reader:
    return Reader(store)


@st.cache_data(max_entries=8, ttl=REFRESH_SECONDS, show_spinner=False)
def _stamp(store: str) -> str:
    return _reader(store).refresh()


def stamp(store: Path) -> str:
    """Generation of the store: changes when rows, grades or plans do; at most REFRESH_SECONDS old."""
    return _stamp(str(store))


@st.cache_data(max_entries=8, show_spinner=False)
def _cells(store: str, stamp: str) -> pd.DataFrame:
    return _reader(store).cells()


@st.cache_resource(max_entries=2, show_spinner=False)
def _answers(store: str, stamp: str) -> Answers:
    return Answers(_reader(store))


@st.cache_data(max_entries=8, show_spinner=False)
def arms(store: Path, stamp: str) -> pd.DataFrame:
    """Every planned or found cell with its accuracy (columns: frames.ARM_COLUMNS).

    Raises UserError while the store holds no rows that count.
    """
    reader = _reader(str(store))
    table = analysis.arms_table(reader, answers=_answers(str(store), stamp))
    if not (table["rows"] > 0).any():
        raise UserError(guard.empty_text(store, reader))
    return frames.arms(table)


@st.cache_data(max_entries=8, show_spinner=False)
def declared_reference(store: Path, stamp: str) -> str:
    """Reference policy that the jobs of the store declare; `random` where they declare none or several."""
    return target.of(_reader(str(store))).question().reference


@st.cache_data(max_entries=8, show_spinner=False)
def margin_points(store: Path, stamp: str) -> float:
    """Margin of the equivalence test that the jobs declare, in points."""
    return 100 * (target.of(_reader(str(store))).question(equivalence=True).rule.margin or 0.0)


def question(store: Path, reference: str, rule: frames.Rule, equivalence: bool) -> analysis.Question:
    """The declared comparison (family, margin, looks) with the reader's choices."""
    same = rule is frames.Rule.SAME
    return target.of(_reader(str(store))).question(reference, equivalence=equivalence, same_rule=same)


@st.cache_data(max_entries=32, show_spinner=False)
def differences(store: Path, stamp: str, reference: str, rule: frames.Rule, equivalence: bool) -> pd.DataFrame:
    """Paired differences of all arms to the reference (columns: frames.DIFFERENCE_COLUMNS)."""
    table = analysis.differences_table(
        _reader(str(store)), question(store, reference, rule, equivalence), answers=_answers(str(store), stamp)
    )
    return frames.differences(table, arms(store, stamp))


@st.cache_data(max_entries=32, show_spinner=False)
def sweep(store: Path, stamp: str, reference: str, rule: frames.Rule, equivalence: bool) -> pd.DataFrame:
    """Curves over keep of all arms: frames.LABEL_COLUMNS and analysis_columns.SWEEP."""
    asked = question(store, reference, rule, equivalence)
    table = sweep_table(_reader(str(store)), asked, answers=_answers(str(store), stamp))
    return frames.sweep(table, arms(store, stamp))


@st.cache_data(max_entries=32, show_spinner=False)
def longer(store: Path, stamp: str, reference: str, rule: frames.Rule) -> pd.DataFrame:
    """Paired differences of generated tokens to the reference (analysis_columns.LENGTHS)."""
    asked = question(store, reference, rule, equivalence=False)
    return lengths_table(_reader(str(store)), asked, answers=_answers(str(store), stamp))


@st.cache_data(max_entries=32, show_spinner=False)
def protection(store: Path, stamp: str, reference: str) -> pd.DataFrame:
    """Each policy with and without prompt protection: frames.LABEL_COLUMNS and analysis_columns.PROTECTION."""
    table = protection_table(_reader(str(store)), reference, answers=_answers(str(store), stamp))
    return frames.protection(table, arms(store, stamp))


@st.cache_data(max_entries=4, show_spinner=False)
def replication(store: Path, stamp: str, paper: str) -> pd.DataFrame:
    """Published numbers beside the store's (orchestrator.replication.columns.REPLICATION)."""
    return replication_table(_reader(str(store)), paper)


@st.cache_data(max_entries=4, show_spinner=False)
def throughput(store: Path, stamp: str) -> throughput_rows.Measured:
    """Throughput measurements of the store, and files that could not be read."""
    return throughput_rows.read(StorePaths(store))


@st.cache_data(max_entries=32, show_spinner=False)
def problems(store: Path, stamp: str, cells: tuple[str, ...]) -> pd.DataFrame:
    """Outcomes per problem of these cells (aggregates.outcomes)."""
    return aggregates.outcomes(_reader(str(store)), cells)


@st.cache_data(max_entries=64, show_spinner=False)
def samples(store: Path, stamp: str, cells: tuple[str, ...], problem_id: str) -> list[int]:
    """Sample indices that any of the cells has of a problem."""
    return aggregates.samples(_reader(str(store)), cells, problem_id)


@st.cache_data(max_entries=32, show_spinner=False)
def problem_grid(
    store: Path, stamp: str, cells: tuple[str, ...], show: frames.Show, first: int, count: int
) -> frames.ProblemGrid:
    """The window first .. first + count of these cells' problems, hardest first."""
    mine = arms(store, stamp)
    outcomes = problems(store, stamp, cells)
    return frames.problem_grid(outcomes, mine[mine["cell_id"].isin(cells)], show, slice(first, first + count))


def transcript(store: Path, row_id: str, with_text: bool) -> dict[str, Any] | None:
    """One row with its grade, and its text when wanted; None while the store does not hold it. Never cached."""
    reader = _reader(str(store))
    try:
        row = reader.row(row_id)
        return {**row, "text": reader.transcript(row_id)} if with_text else row
    except KeyError:
        return None


@st.cache_data(max_entries=8, show_spinner=False)
def lengths(store: Path, stamp: str, cells: tuple[str, ...]) -> pd.DataFrame:
    """Generated tokens per cell (aggregates.lengths)."""
    return aggregates.lengths(_reader(str(store)), cells)


@st.cache_data(max_entries=16, show_spinner=False)
def retention(store: Path, stamp: str, cells: tuple[str, ...]) -> pd.DataFrame:
    """Share of tokens still held at the end by age bin: cell_id, age_from (tokens), age (`16–31`), held, rows."""
    reader = _reader(str(store))
    return survival.held_of(aggregates.ages(reader, cells), aggregates.cached_lengths(reader, cells))


@st.cache_data(max_entries=16, show_spinner=False)
def retention_law(store: Path, stamp: str, cell: str) -> pd.DataFrame:
    """What a uniform draw at this cell's budget and protection keeps on average by age bin: age_from, held."""
    return survival.law(aggregates.spread_rows(_reader(str(store)), cell, survival.LAW_ROWS))


@st.cache_data(max_entries=8, show_spinner=False)
def provenance(store: Path, stamp: str) -> pd.DataFrame:
    """What made the rows: one line per engine kind, device, node, runner, graph mode and revision, with counts."""
    return aggregates.origins(_reader(str(store)))


def cell_facts(store: Path, stamp: str, cell_id: str) -> dict[str, str]:
    """What a cell is and what made its rows, as text by name; several values of the engines side by side."""
    reader = _reader(str(store))
    cells = cells_of(reader, None)
    facts = (
        cells[cells["cell_id"] == cell_id].iloc[0].drop(["rows", "graded", "invalid", "last_commit"], errors="ignore")
    )
    made = aggregates.origins(reader, [cell_id])
    engines = {name: sorted(set(made[name].dropna().astype(str))) for name in MADE_BY}
    return {
        **{str(name): "–" if pd.isna(value) else str(value) for name, value in facts.items()},
        **{name: ", ".join(values) or "–" for name, values in engines.items()},
        "versions": " | ".join(reader.versions([cell_id])) or "–",
    }


@st.cache_data(max_entries=8, show_spinner=False)
def versions(store: Path, stamp: str) -> list[dict[str, str]]:
    """Distinct sets of package versions of the engines that made the rows."""
    return [json.loads(text) for text in _reader(str(store)).versions()]


def corrupt(store: Path, stamp: str) -> list[str]:
    """Files of the store that could not be read, each with the reason."""
    skipped = _reader(str(store)).skipped
    return [f"Skipped {one.path.relative_to(store)}: {one.reason}." for one in skipped]


@st.cache_data(max_entries=8, show_spinner=False)
def campaigns(store: Path, stamp: str) -> pd.DataFrame:
    """One line per campaign: name, rows, planned, share, control (run, pause or cancel)."""
    reader = _reader(str(store))
    found = _cells(str(store), stamp).set_index("cell_id")["rows"].astype(int)
    lines = []
    for campaign in reader.campaigns():
        plan = reader.plan(campaign.campaign_id)
        wanted = (plan["n_problems"] * plan["samples_min"]).astype(int)
        done = plan["cell_id"].map(found).fillna(0).astype(int)
        planned, rows = int(wanted.sum()), int(pd.concat([done, wanted], axis=1).min(axis=1).sum())
        share = rows / planned if planned else 0.0
        lines.append((campaign.campaign_id, rows, planned, share, campaign.control().value))
    return pd.DataFrame(lines, columns=["name", "rows", "planned", "share", "control"])


def job_file(store: Path, campaign_id: str) -> str | None:
    """The job file of a campaign as submitted last."""
    return Campaign(StorePaths(store), campaign_id).spec()


def freshness(store: Path, stamp: str) -> str:
    """`committed 4 min ago`, of the newest row."""
    newest = _cells(str(store), stamp)["last_commit"].max()
    return "none yet" if pd.isna(newest) else f"{theme.duration((datetime.now(UTC) - newest).total_seconds())} ago"


def engines(store: Path) -> list[Mapping[str, Any]]:
    """Last heartbeat of every engine that has not been retired, over all campaigns. Small files, never cached."""
    return [beat for campaign in _campaigns(store) for beat in campaign.live()]


def logs(store: Path) -> dict[str, Path]:
    """Log file by engine id, over all campaigns."""
    found = (path for campaign in _campaigns(store) for path in (campaign.directory / "logs").glob("*.log"))
    return {path.stem: path for path in sorted(found)}


def failures(store: Path) -> list[Mapping[str, Any]]:
    """Attempts that ended without a commit, over all campaigns. Small files, never cached."""
    return [attempt for campaign in _campaigns(store) for attempt in campaign.attempts()]


def done_rows(store: Path) -> dict[str, int]:
    """Committed rows by cell, as far as the reader has seen."""
    cells = _cells(str(store), stamp(store))
    return dict(zip(cells["cell_id"], cells["rows"].astype(int), strict=True))


@st.cache_data(max_entries=4, show_spinner=False)
def pace(store: Path, stamp: str, minutes: int) -> pd.DataFrame:
    """Rows and tokens by minute up to the newest row (aggregates.pace)."""
    return aggregates.pace(_reader(str(store)), minutes)


def seconds_since(text: object) -> float | None:
    """Age of an ISO time in seconds; None for anything else."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(text))).total_seconds()
    except (TypeError, ValueError):
        return None


def _campaigns(store: Path) -> list[Campaign]:
    paths = StorePaths(store)
    return [Campaign(paths, path.name) for path in sorted(paths.campaigns.glob("*")) if path.is_dir()]


@st.cache_data(max_entries=8, show_spinner=False)
def notes(store: Path, stamp: str) -> list[str]:
    """What a reader must know before believing the numbers: simulated rows left out, facts of the models."""
    simulated = analysis.simulated_cells(_reader(str(store)))
    left_out = [f"Left out: {len(simulated)} cells of a simulated engine; they are never results."] if simulated else []
    return [*left_out, *report_notes.model_facts(arms(store, stamp)["model_path"])]
