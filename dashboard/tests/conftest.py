"""A small store with every kind of verdict, worked out by hand, and a way to open the app on a store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.command import APP
from orchestrator.cells import Cell
from orchestrator.chunks import ChunkId, Row, Work
from orchestrator.stats.survival import tokens_per_bin
from orchestrator.store.tests import stores
from orchestrator.store.tests.stores import Arm, build_store
from workers.api import AGE_BINS

PROBLEMS = 24
HOSTILE = '</span><script>document.title = "owned"</script><img src=x onerror="document.title=\'owned\'"> **bold** $x$'

# Against random, prompt protected (12 of 24 right):
ARMS = (
    Arm("full", "1" * 24),
    Arm("random", "1" * 12 + "0" * 12),
    Arm("recent", "1" * 22 + "00"),  # 10 won, 0 lost: better
    Arm("random", "0" * 16 + "tttt" + "nnnn", protection="none"),  # 0 won, 12 lost: worse
    Arm("streaming_llm", "1" * 13 + "0" * 11, protection="sinks"),  # 1 won: too few differ, unresolved
    Arm("random_inplace", "1" * 8),  # 8 of 24 problems: unfinished
)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ARMS on 24 problems; random_inplace has its first block only; p001 of `full` has a hostile text."""
    path = tmp_path_factory.mktemp("dashboard") / "store"
    made = stores.make_row

    def make_row(cell: Cell, work: Work, row: Row, *rest: Any) -> dict[str, Any]:
        values = made(cell, work, row, *rest)
        if row.problem_id == "p003" and values["age_histogram"] is not None:
            # 4 layer x head pairs that hold every token
            length = np.array([values["n_prompt"] + values["n_output"] - 1])
            values["age_histogram"] = (4 * tokens_per_bin(length, AGE_BINS)).tolist()
        return (
            {**values, "text": f"seven {HOSTILE}"} if (cell.policy.name, row.problem_id) == ("full", "p001") else values
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "make_row", make_row)
        build_store(path, ARMS, planned=(PROBLEMS, 1))
    return path


@pytest.fixture
def open_app(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """Open the app on a store at a page: open_app(store, "accuracy", reference="recent").

    Caches outlive a test, as they outlive a page view; a store that a test changes needs a path of its own.
    """

    def run(store: Path, page: str = "overview", *flags: str, **query: Any) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["app.py", str(store), *flags])
        app = AppTest.from_file(str(APP), default_timeout=60)
        app.query_params.update(query)
        # without a first run of the overview; its address is empty, so it is no page to switch to
        return (app if page == "overview" else app.switch_page(f"views/{page}.py")).run()

    return run


def chunk_file(store: Path, arm: Arm, block: int = 0) -> Path:
    """The file of one chunk of an arm."""
    cell = arm.cell.cell_id
    return store / "generations" / cell / f"{ChunkId(cell, 0, block).name}.parquet"
