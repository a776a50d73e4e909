"""Samples by results: decided for all arms of a (model, task) together, from committed and graded rows alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import adaptive, report, report_notes, target
from orchestrator.analysis import Selection, differences_table
from orchestrator.analysis_stopping import STOPPING, stopping_table
from orchestrator.campaign import plan_rows
from orchestrator.chunks import ChunkId, blocks_for
from orchestrator.errors import UserError
from orchestrator.grid import Plan, expand
from orchestrator.spec import JobSpec
from orchestrator.stats.sequential import schedule
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import commit_block
from orchestrator.store.writer import Store
from orchestrator.tests.machines import Machine, job_text

ARMS = "{policies: [full, random, recent], keep: 264, interval: 16}"


def planned(samples: str = "{min: 1, max: 8, until_width: 20}", more: str = "") -> Plan:
    return expand(JobSpec.from_text(job_text(arms=ARMS, samples=samples, more=more)), Machine())


def commit(store: Store, plan: Plan, words: list[list[str]], first: int = 0) -> None:
    """words[arm][sample]: outcomes of all problems, from sample `first` on."""
    store.campaign(plan.job.name).submit("", plan.job.resolved(), {}, plan_rows(plan))
    for cell, samples in zip(plan.cells, words, strict=True):
        for sample, word in enumerate(samples, first):
            for block in range(blocks_for(len(word))):
                commit_block(store, cell.cell, ChunkId(cell.cell_id, sample, block), word)


def targets(plan: Plan, store: Path) -> set[int]:
    return {cell.samples_max for cell in adaptive.decided(plan, store).cells}


def test_looks_double_from_min_to_max_unless_they_are_declared() -> None:
    assert adaptive.looks(planned().job) == (1, 2, 4, 8)
    assert adaptive.looks(planned("{min: 3, max: 10, until_width: 2}").job) == (3, 6, 10)
    assert adaptive.looks(planned(more="analysis: {looks: [2, 5]}\n").job) == (2, 5, 8)


def test_a_fixed_number_is_left_alone(tmp_path: Path) -> None:
    plan = planned("2")
    assert adaptive.decided(plan, tmp_path) is plan


def test_every_cell_starts_with_the_first_look_and_says_so(tmp_path: Path) -> None:
    plan = adaptive.decided(planned(), tmp_path / "none")
    assert {cell.samples_max for cell in plan.cells} == {1}
    assert len(plan.missing(())) == 3 * blocks_for(16)
    assert any("looks after 1, 2, 4, 8" in note for note in plan.notes)


def test_narrow_intervals_stop_and_one_wide_arm_takes_all_arms_along(tmp_path: Path) -> None:
    plan = planned()
    narrow, wide = Store.open(tmp_path / "narrow"), Store.open(tmp_path / "wide")
    commit(narrow, plan, [["1" * 16], ["1" * 16], ["1" * 16]])
    assert targets(plan, tmp_path / "narrow") == {1}
    commit(wide, plan, [["1" * 16], ["10" * 8], ["1" * 16]])
    assert targets(plan, tmp_path / "wide") == {2}


def test_a_look_waits_for_every_arm_and_the_last_one_ends_it(tmp_path: Path) -> None:
    plan = planned("{min: 1, max: 2, until_width: 20}")
    store = Store.open(tmp_path)
    commit(store, plan, [["1" * 16], ["10" * 8], []])
    assert targets(plan, tmp_path) == {1}, "recent has no rows yet"
    commit(store, plan, [[], [], ["1" * 16]])
    assert targets(plan, tmp_path) == {2}
    commit(store, plan, [["1" * 16], ["01" * 8], ["1" * 16]], first=1)
    assert targets(plan, tmp_path) == {2}


def test_the_decision_counts_only_samples_of_its_look(tmp_path: Path) -> None:
    plan = planned("{min: 1, max: 4, until_width: 20}")
    store = Store.open(tmp_path)
    commit(store, plan, [["1" * 16], ["10" * 8], ["1" * 16]])
    commit(store, plan, [["1" * 16], ["1" * 16], ["1" * 16]], first=1)
    wide = adaptive.decided(plan, tmp_path)
    assert {cell.samples_max for cell in wide.cells} == {4}
    assert wide.missing(store.committed(cell.cell_id for cell in wide.cells))[0].sample == 2


def levels(plan: Plan, store: Path) -> set[tuple[int, int, float]]:
    """Look, looks and level of every comparison of the job, as reports show them."""
    reader = Reader(store)
    table = differences_table(reader, target.of(reader, plan.job.name).question())
    return {(int(row["look"]), int(row["looks"]), round(float(row["alpha"]), 6)) for _, row in table.iterrows()}


def test_what_a_job_that_goes_on_shows_is_tested_as_a_look_and_its_end_at_the_full_level(tmp_path: Path) -> None:
    plan = planned()
    first = adaptive.decided(plan, tmp_path / "none")
    early = round(schedule((1, 2, 4, 8), 8)[0].alpha, 6)
    narrow, wide = tmp_path / "narrow", tmp_path / "wide"
    commit(Store.open(narrow), first, [["1" * 16], ["1" * 16], ["1" * 16]])
    assert levels(plan, narrow) == {(1, 1, 0.05)}
    commit(Store.open(wide), first, [["1" * 16], ["10" * 8], ["1" * 16]])
    assert levels(plan, wide) == {(1, 4, early)}, "before the driver has asked for more"
    store = Store.open(wide)
    store.campaign(plan.job.name).replan(plan_rows(adaptive.decided(plan, wide)))
    assert levels(plan, wide) == {(1, 4, early)}, "while the second look is made"
    commit(store, adaptive.decided(plan, wide), [["1" * 16]] * 3, first=1)
    after = adaptive.decided(plan, wide)
    assert {cell.samples_max for cell in after.cells} == {4}


def test_reports_say_what_stopping_early_saved(tmp_path: Path) -> None:
    plan = planned()
    first = adaptive.decided(plan, tmp_path / "none")
    for name, word, said in (
        ("narrow", "1" * 16, "ended after 1 of at most 8 samples, all intervals within 20 points; 88 % of the rows"),
        ("wide", "10" * 8, "1 of at most 8 samples so far; more follow while an interval is wider than 20 points."),
    ):
        commit(Store.open(tmp_path / name), first, [["1" * 16], [word], ["1" * 16]])
        reader = Reader(tmp_path / name)
        question = target.of(reader, plan.job.name).question()
        table = stopping_table(reader, question, campaign=plan.job.name)
        assert dict(table.dtypes.astype(str)) == dict(STOPPING)
        assert table.iloc[0][["samples", "most", "rows", "ended"]].tolist() == [1, 8, 48, name == "narrow"]
        assert said in next(iter(report_notes.stopping(table, 20)))
        assert said in " ".join(report.build(reader, Selection(campaign=plan.job.name), question).notes)
    fixed = planned("2")
    commit(Store.open(tmp_path / "fixed"), fixed, [["1" * 16] * 2] * 3)
    reader = Reader(tmp_path / "fixed")
    assert stopping_table(reader, target.of(reader, fixed.job.name).question()).empty


@pytest.mark.parametrize("samples", ["{min: 1, max: 8}", "{min: 8, max: 1, until_width: 2}"])
def test_a_rule_that_cannot_stop_or_begin_is_refused(samples: str) -> None:
    with pytest.raises(UserError, match="samples"):
        planned(samples)
