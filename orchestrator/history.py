"""What a store already knows about a plan: committed chunks, answer lengths, speed, size. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from orchestrator.chunks import ChunkId
from orchestrator.grid import Plan
from orchestrator.lengths import Lengths, Seen, Source, kind_of, learn
from orchestrator.store.paths import StorePaths, chunk_files
from orchestrator.store.reader import Reader
from orchestrator.store.writer import missing

_LENGTHS = ("cell_id", "model", "task", "protection", "problem_id")
_COLUMNS = (*_LENGTHS, "n_output", "engine_id", "started_at", "finished_at")


@dataclass(frozen=True, slots=True)
class History:
    """Measurements from committed rows; everything is empty for a store that does not exist yet.

    lengths  what its rows say of generated tokens per row, over every arm of the plan's models
    speed    generated tokens per second of one engine, by model
    bytes_per_token  size of committed files over their generated tokens
    """

    committed: frozenset[ChunkId] = frozenset()
    lengths: Lengths = field(default_factory=Lengths)
    speed: Mapping[str, float] = field(default_factory=dict)
    bytes_per_token: float | None = None


def read(store: Path, plan: Plan) -> History:
    """History of a plan's cells and of others on the same models. Raises UserError for a directory that is no store."""
    if missing(store):
        return History()
    refuse_changed_problems(store, plan)
    reader = Reader(store)
    cells = reader.cells()
    models = {planned.cell.model.path for planned in plan.cells}
    known = cells[cells["model"].isin(models) & ~cells["simulated"].astype(bool)]["cell_id"].tolist()
    rows = reader.rows(_COLUMNS, known)
    files = dict(chunk_files(StorePaths(store).generations))
    wanted = {planned.cell_id for planned in plan.cells}
    tokens = int(rows["n_output"].sum())
    size = sum(path.stat().st_size for chunk, path in files.items() if chunk.cell_id in set(known))
    return History(
        committed=frozenset(chunk for chunk in files if chunk.cell_id in wanted),
        lengths=learn(_seen(rows)),
        speed=_speed(rows),
        bytes_per_token=size / tokens if tokens else None,
    )


def refuse_changed_problems(store: Path, plan: Plan) -> None:
    """Problems may be appended to a user's file, never changed (contracts.md section 4).

    Raises UserError naming the first line that is not what rows of the store were made from.
    """
    guarded = {ref: task for ref, task in plan.tasks.items() if hasattr(task, "refuse_changes")}
    if not guarded:
        return
    reader = Reader(store)
    cells = reader.cells()
    for ref, task in guarded.items():
        mine = cells[(cells["task"] == ref.name) & (cells["task_revision"] == ref.revision)]
        rows = reader.rows(("problem_index", "problem_id"), mine["cell_id"].tolist())
        stored = {int(index): str(name) for index, name in zip(rows["problem_index"], rows["problem_id"], strict=True)}
        task.refuse_changes(stored)


def _seen(rows: pd.DataFrame) -> Iterator[Seen]:
    """Rows summed by cell and problem."""
    sums = rows.groupby(list(_LENGTHS), as_index=False, dropna=False)["n_output"].agg(["size", "sum"])
    columns = (sums[name].tolist() for name in (*_LENGTHS, "size", "sum"))
    for cell_id, model, task, protection, problem, count, tokens in zip(*columns, strict=True):
        kind = kind_of(None if pd.isna(protection) else str(protection))
        yield Seen(Source(str(cell_id), str(model), str(task), kind), str(problem), int(count), float(tokens))


def _speed(rows: pd.DataFrame) -> dict[str, float]:
    """Tokens per second by model: what its engines generated over the time between their first and last row."""
    engines = rows.groupby(["model", "engine_id"]).agg(
        tokens=("n_output", "sum"), first=("started_at", "min"), last=("finished_at", "max")
    )
    engines["seconds"] = (engines["last"] - engines["first"]).dt.total_seconds()
    sums = engines.groupby("model")[["tokens", "seconds"]].sum()
    sums = sums[sums["seconds"] > 0]
    return {str(model): float(speed) for model, speed in (sums["tokens"] / sums["seconds"]).items()}
