"""Stores that cannot be compared, or that change under the page: named, counted, never a blank page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from streamlit.testing.v1 import AppTest

from dashboard import data
from dashboard.tests.conftest import chunk_file
from dashboard.tests.test_pages import cells_of, html, words
from orchestrator.chunks import ChunkId
from orchestrator.store.tests.stores import Arm, build_store, commit_block

Open = Callable[..., AppTest]
RANDOM, RECENT = Arm("random", "1" * 16), Arm("recent", "0" * 16)


def test_arms_without_a_common_problem_get_no_verdict(tmp_path: Path, open_app: Open) -> None:
    root = build_store(tmp_path / "store", [RANDOM, RECENT]).paths.root
    chunk_file(root, RANDOM, block=1).unlink()
    chunk_file(root, RECENT, block=0).unlink()
    app = open_app(root, "differences")
    assert not app.exception
    row = cells_of(app, "recent", "prompt protected")
    assert "50 % done" in row
    assert "0 / 0 / 0" in row
    assert not {"▲", "▼", "·"} & set(row)
    for page in ("compression", "lengths", "overview"):
        app.switch_page(f"views/{page}.py").run()
        assert not app.exception, page


def test_rows_that_arrive_while_a_page_is_open_are_shown(tmp_path: Path, open_app: Open) -> None:
    store = build_store(tmp_path / "store", [RANDOM, Arm("recent", "1" * 8)], planned=(16, 1))
    draft = store.paths.temporary / "s0000-b00001.0123.inprogress"
    draft.parent.mkdir(exist_ok=True)
    draft.write_bytes(b"half a file")
    app = open_app(store.paths.root)
    assert "50 % done" in cells_of(app, "recent", "prompt protected")
    commit_block(store, RECENT.cell, ChunkId(RECENT.cell.cell_id, 0, 1), "1" * 16)
    data._stamp.clear()
    app.run()
    assert not app.exception
    # 16 of 16 problems tie
    assert "· 0.0 (16×1)" in cells_of(app, "recent", "prompt protected")
    assert "inprogress" not in words(app) + html(app)


def test_a_declared_reference_without_an_arm_is_named(tmp_path: Path, open_app: Open) -> None:
    store = build_store(tmp_path / "store", [RANDOM, RECENT])
    campaign = store.campaign("demo")
    campaign.submit("name: demo\n", {"analysis": {"reference": "h2o"}}, {}, campaign.plan().to_pylist())
    app = open_app(store.paths.root)
    assert not app.exception
    assert "declares 'h2o' as reference; it has no arm here" in " ".join(one.value for one in app.sidebar.warning)
