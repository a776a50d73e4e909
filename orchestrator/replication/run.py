"""What a store holds for the arms of a publication: cells, problems, answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from orchestrator.analysis_pairs import complete_problems, pair_problems
from orchestrator.analysis_rows import cells_of, complete, counted, problems_of, records
from orchestrator.replication.arms import Wanted
from orchestrator.replication.names import MODELS, same_model
from orchestrator.stats.paired import Paired
from orchestrator.store import throughput
from orchestrator.store.reader import Reader

Cell = Mapping[str, Any]


class Run:
    """One store, read once; cells of other models than the published ones are not read at all."""

    def __init__(self, reader: Reader) -> None:
        """Reads the list of cells only."""
        self._reader = reader
        self.cells = records(cells_of(reader, None))

    @cached_property
    def identities(self) -> dict[str, dict[str, Any]]:
        """Identity of each planned cell, by id; cells without a plan have none."""
        plan = self._reader.plan()
        return {row["cell_id"]: json.loads(row["identity"]) for row in records(plan)}

    def arm(self, wanted: Wanted) -> Cell | None:
        """The cell of an arm, if it has rows."""
        cell = wanted.find(self.cells)
        return cell if cell is not None and cell["rows"] else None

    def rows(self, cell: Cell) -> pd.DataFrame:
        """All rows of a published model's cell with `counts`, `right` and `length` (analysis_rows.counted)."""
        return self._rows[str(cell["cell_id"])]

    def problems(self, cell: Cell) -> pd.DataFrame:
        """Complete problems of a cell: counts, right, length."""
        return complete_problems(cell, self._problems)

    def paired(self, mine: Cell, theirs: Cell) -> Paired:
        """Two cells on the problems that are complete in both."""
        a, b = self.problems(mine), self.problems(theirs)
        return pair_problems(a, b, a.index.intersection(b.index).sort_values())

    def run_accuracies(self, cell: Cell) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Accuracy of each sample index over the complete problems [m]: what one run of the publication is."""
        rows = self.rows(cell)
        rows = rows[rows["counts"] & rows["problem_id"].isin(self.problems(cell).index)]
        return rows.groupby("sample")["right"].mean().to_numpy(np.float64)

    def traces(self, cell: Cell) -> pd.DataFrame:
        """Rows of a cell as stats.survival.held wants them; read from the files of the cell."""
        columns = ("cell_id", "problem_id", "n_prompt", "n_output", "age_histogram")
        rows = self._reader.rows(columns, [str(cell["cell_id"])])
        return rows[rows["age_histogram"].notna()]

    @cached_property
    def throughput(self) -> pd.DataFrame:
        """Speed measurements of the store (store.throughput)."""
        return throughput.read(self._reader.paths).rows

    def unfinished(self, cell: Cell) -> bool:
        """Whether rows or grades of a planned cell are missing."""
        return complete(dict(cell)) is False

    @cached_property
    def _rows(self) -> dict[str, pd.DataFrame]:
        rows = counted(self._reader, pd.DataFrame({"cell_id": self._published}))
        return {str(cell_id): part for cell_id, part in rows.groupby("cell_id")}

    @cached_property
    def _problems(self) -> dict[str, pd.DataFrame]:
        return problems_of(self._reader, self._published)

    @cached_property
    def _published(self) -> list[str]:
        """Cells of published models."""
        published = (cell for cell in self.cells if any(same_model(name, str(cell["model"])) for name in MODELS))
        return [str(cell["cell_id"]) for cell in published]
