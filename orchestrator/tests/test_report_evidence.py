"""What a job's analysis section asks for reaches the report: looks with levels, pools, protection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import report, target
from orchestrator.analysis import Selection
from orchestrator.stats.sequential import schedule
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import Arm, build_store

RANDOM = Arm("random", ("1" * 20 + "0" * 4,) * 2)
RECENT = Arm("recent", ("1" * 2 + "0" * 22,) * 2)


def test_the_jobs_analysis_section_is_honoured(tmp_path: Path) -> None:
    store = build_store(tmp_path / "s", [RANDOM, RECENT, replace(RECENT, protection="none")], planned=(24, 4))
    section = {"reference": "random", "family": "task", "looks": [2], "margin_points": 3}
    rows = store.campaign("demo").plan().to_pylist()
    store.campaign("demo").submit("name: demo\n", {"name": "demo", "analysis": section}, {}, rows)
    reader = Reader(tmp_path / "s")
    question = target.of(reader, "demo").question(equivalence=True)
    assert (question.family, question.looks, question.rule.margin) == ("task", (2,), 0.03)
    found = report.build(reader, Selection(campaign="demo"), question)
    sheet = next(sheet for sheet in found.sheets if sheet.title.startswith("Paired difference"))
    level = 100 * (1 - schedule((2,), 4)[0].alpha)
    assert sheet.rows[0][sheet.columns.index(">look and level")] == f"1 of 2, {level:.4g} %"
    assert any("look 1 at level" in note for note in found.notes)
    assert any(sheet.title.startswith("Score or protection") for sheet in found.sheets)


def test_a_store_whose_campaigns_disagree_uses_what_they_share(tmp_path: Path) -> None:
    store = build_store(tmp_path / "s", [RANDOM])
    for name, family in (("demo", "task"), ("other", "all")):
        section = {"reference": "recent", "family": family}
        store.campaign(name).submit("name: x\n", {"analysis": section, "protocol": "published"}, {}, [])
    question = target.of(Reader(tmp_path / "s")).question()
    assert (question.reference, question.family, question.rule.published) == ("recent", "model", True)


@pytest.mark.parametrize("tasks", [1, 2])
def test_pools_appear_where_there_is_something_to_pool(tmp_path: Path, tasks: int) -> None:
    arms = [replace(arm, task=task) for arm in (RANDOM, RECENT) for task in ("reasoner_w", "reasoner_p")[:tasks]]
    build_store(tmp_path / "s", arms)
    reader = Reader(tmp_path / "s")
    found = report.build(reader, Selection(), target.of(reader).question())
    pooled = [sheet for sheet in found.sheets if sheet.title.startswith("Pooled")]
    assert len(pooled) == tasks - 1
    assert len(found.evidence["pooled"]) == 2 * (tasks - 1)
