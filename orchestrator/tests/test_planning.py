"""Forecasts: what is committed is counted off, measured rows replace defaults, comparisons are those of the report."""

from __future__ import annotations

import json
import math
import os
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from orchestrator import analysis, history, planning
from orchestrator.chunks import ChunkId
from orchestrator.commands import plan as plan_command
from orchestrator.errors import UserError
from orchestrator.grid import Plan, expand
from orchestrator.history import History
from orchestrator.ledger import Books
from orchestrator.lengths import DEFAULT_DOUBT, NOTHING_LEARNED, Seen, learn, source_of
from orchestrator.planning import Forecast, forecast
from orchestrator.spec import JobSpec
from orchestrator.store.reader import Reader
from orchestrator.store.rows import plan_row
from orchestrator.store.tests.stores import commit_block, make_row, make_work
from orchestrator.store.writer import Store
from orchestrator.tests.machines import Machine, job_text
from orchestrator.work_list import work_list

ARMS = "{policies: [full, random, {name: random, protection: none}, recent], keep: [132, 264], interval: 16}"


def planned(text: str | None = None) -> Plan:
    return expand(JobSpec.from_text(text or job_text(arms=ARMS)), Machine())


def seen(plan: Plan, store: Path) -> Forecast:
    return forecast(plan, history.read(store, plan), str(store))


def test_without_a_store_everything_is_to_make_at_default_figures(tmp_path: Path) -> None:
    plan = planned()
    expected = seen(plan, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert [(cell.chunks, cell.committed, cell.rows) for cell in expected.cells] == [(2, 0, 16)] * 7
    assert {(cell.tokens_per_row, cell.source) for cell in expected.cells} == {(950.0, "the task's own figure")}
    assert expected.tokens == 7 * 16 * 950
    speed = {engine.tokens_per_second for engine in expected.engines}
    assert speed == {planning.DEFAULT_TOKENS_PER_SECOND}
    assert expected.seconds == pytest.approx(2 * planning.ENGINE_START_SECONDS + expected.tokens / 1500)


def test_committed_rows_are_counted_off_and_lend_their_lengths_and_speed(tmp_path: Path) -> None:
    plan = planned()
    store = Store.open(tmp_path)
    done = plan.cells[1]
    for block in range(2):
        commit_block(store, done.cell, ChunkId(done.cell_id, 0, block), "1" * 16)
    expected = seen(plan, tmp_path)
    finished, other = expected.cells[1], expected.cells[2]
    assert (finished.committed, finished.rows, finished.tokens) == (2, 0, 0)
    # problem i generates 1000 + i tokens, from second i to second i + 10.5
    # and 16 rows count as much as what they lean on, at each of three levels
    assert finished.tokens_per_row == pytest.approx(1007.5 - (1007.5 - 950) / 8, abs=0.1)
    assert other.tokens_per_row == pytest.approx(1007.5 - (1007.5 - 950) / 4, abs=0.1)
    assert (finished.source, other.source) == ("this cell's rows", "rows of the same model and task")
    total, span = 16 * 1007.5, timedelta(seconds=25.5).total_seconds()
    assert expected.engines[1].tokens_per_second == pytest.approx(total / span)
    assert expected.engines[1].source == "rows of the store"
    files = sum(path.stat().st_size for path in (tmp_path / "generations").rglob("*.parquet"))
    assert expected.disk_bytes == pytest.approx(expected.tokens * files / total)


def test_a_finished_job_has_nothing_to_make(tmp_path: Path) -> None:
    plan = planned(job_text(arms="{policies: [random], keep: 264, interval: 16}"))
    store = Store.open(tmp_path)
    for chunk in plan.missing(()):
        commit_block(store, plan.cell(chunk.cell_id).cell, chunk, "1" * 16)
    expected = seen(plan, tmp_path)
    assert (expected.rows, expected.tokens, expected.seconds, expected.disk_bytes) == (0, 0, 0, 0)
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(plan_command.page(expected))
    assert "Everything is in the store: a run would do nothing." in console.export_text()


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no store"):
        seen(planned(), tmp_path)


def own_problems(folder: Path, questions: list[str]) -> Plan:
    lines = [json.dumps({"problem": question, "answer": "1"}) for question in questions]
    (folder / "mine.jsonl").write_text("\n".join(lines))
    text = job_text().replace("{name: reasoner_w, limit: 16}", "{name: jsonl, path: mine.jsonl}")
    return expand(JobSpec.from_text(text, folder / "job.yaml"), Machine())


def test_a_grown_file_keeps_its_rows_and_a_changed_line_is_refused(tmp_path: Path) -> None:
    questions = [f"what is {i}?" for i in range(8)]
    plan = own_problems(tmp_path, questions)
    store = Store.open(tmp_path / "store")
    cell, work = plan.cells[0].cell, plan.build(plan.missing(())[0], 1)
    likeness = make_work(cell, work.chunk, 8)
    rows = [
        {**made, "problem_id": row.problem_id, "row_id": f"{plan.cells[0].cell_id}/{row.problem_id}/0"}
        for row, other in zip(work.rows, likeness.rows, strict=True)
        for made in [make_row(cell, likeness, other)]
    ]
    store.commit_chunk(work, rows)
    grown = seen(own_problems(tmp_path, [*questions, "what else?"]), tmp_path / "store")
    assert [(entry.chunks, entry.committed) for entry in grown.cells] == [(1, 1), (1, 0)]
    assert grown.notes[0] == "jsonl: 8 of 9 problems run; the rest wait until their block of 8 is full."
    changed = own_problems(tmp_path, [*questions[:5], "what is new?", *questions[6:]])
    with pytest.raises(UserError, match=r"line 6 of .*mine.jsonl has changed"):
        seen(changed, tmp_path / "store")


@pytest.mark.parametrize("reference", ["random", "recent"])
def test_comparisons_are_those_that_the_report_makes(tmp_path: Path, reference: str) -> None:
    arms = ARMS.replace("recent]", "recent, {name: random, budget_mode: total_no_recent}]")
    plan = planned(job_text(arms=arms, more=f"analysis: {{reference: {reference}}}"))
    store = Store.open(tmp_path)
    rows = [plan_row(p.cell, p.n_problems, 1, 1, 1.0) for p in plan.cells]
    store.campaign("test").submit("", {}, {}, rows)
    table = analysis.differences_table(Reader(tmp_path), analysis.Question(reference=reference))
    reported = list(zip(table["cell_id"], table["reference_id"], strict=True))
    forecasts = forecast(plan, History(), "").comparisons
    assert [(entry.cell_id, entry.reference_id) for entry in forecasts] == reported
    assert len(reported) >= 6


def test_detectable_differences_shrink_with_problems_and_samples() -> None:
    def points(limit: int, samples: int) -> float:
        text = job_text(arms=ARMS, samples=samples).replace("limit: 16", f"limit: {limit}")
        return forecast(planned(text), History(), "").comparisons[0].points

    assert points(16, 1) > points(104, 1) > points(104, 4)
    assert points(104, 1) / points(104, 4) == pytest.approx(2)
    assert points(104, 1) == pytest.approx(100 * 2.83 * math.sqrt(1 / 3) / math.sqrt(104), rel=0.01)


def test_remarks_name_what_will_disappoint() -> None:
    alone = job_text(
        arms="{policies: [full, recent], keep: 264, interval: 16}", more="execution: {budget: {gpu_hours: 0.001}}"
    )
    notes = forecast(planned(alone.replace("limit: 16", "limit: 8")), History(), "").notes
    assert notes == (
        "nothing is compared: no arm stands beside one of the reference 'random'.",
        "the estimate of 0.0 GPU-hours exceeds execution.budget (0.001 GPU-hours).",
    )
    few = forecast(planned(job_text().replace("limit: 16", "limit: 8")), History(), "").notes
    assert few == ("reasoner_w: fewer than 10 problems; the report will call every comparison unresolved.",)


def test_an_arm_without_a_counterpart_is_named() -> None:
    arms = "{policies: [random, {name: recent, keep: [264, 300]}], keep: [264, 132], interval: 16}"
    assert forecast(planned(job_text(arms=arms)), History(), "").notes == (
        "reasoner_w: recent K300 r16 prompt is compared with nothing: the job has no 'random' at its keep and "
        "interval.",
    )


def test_cost_is_hours_times_the_rate_of_the_gpu() -> None:
    more = "resources: {tp: 2, gpu: H200}\nexecution: {rates: {H200: 3.0}}"
    expected = forecast(planned(job_text(more=more)), History(), "")
    assert expected.gpu_hours == pytest.approx(2 * expected.seconds / 3600)
    assert expected.cost == pytest.approx(3 * expected.gpu_hours)
    assert forecast(planned(), History(), "").cost is None


def test_the_page_fits_a_narrow_terminal() -> None:
    expected = forecast(planned(), History(), "./store")
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(plan_command.page(expected))
    text = console.export_text()
    assert "…" not in text
    assert "embedded:reasoner, reasoner_w: 16 problems, 1 sample each" in text
    assert " random K264 r16 prompt   0/2    16     950   15.2k      ref " in text
    assert "off (full cache)" in text


def test_the_command_prints_json_for_the_demo_and_writes_nothing(tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "jobs" / "demo.yaml"
    arguments = [str(demo), "--store", str(tmp_path / "store"), "--format", "json"]
    found = CliRunner().invoke(plan_command.command, arguments)
    assert found.exit_code == 0, found.output
    shown = json.loads(found.stdout)
    assert [cell["rows_to_make"] for cell in shown["cells"]] == [104] * 7
    assert len(shown["comparisons"]) == 6
    assert [entry["detectable_points"] for entry in shown["comparisons"]] == [pytest.approx(16.0, abs=0.1)] * 6
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (98_800, "98.8k"), (3_000_000, "3.0M"), (2.9e9, "2.9G"), (9e14, "900.0T")],
)
def test_amounts(value: float, text: str) -> None:
    assert plan_command.amount(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h"), (180_000, "2.1 d")],
)
def test_durations(seconds: float, text: str) -> None:
    assert plan_command.duration(seconds) == text


def test_a_range_says_how_far_off_hours_may_be_and_a_price_follows_it(tmp_path: Path) -> None:
    more = "resources: {gpu: H200}\nexecution: {rates: {H200: 4}}\n"
    plan = planned(job_text(arms=ARMS, more=more))
    blind = seen(plan, tmp_path / "none")
    start = 2 * planning.ENGINE_START_SECONDS / 3600
    least, most = blind.gpu_hours_range
    assert (blind.gpu_hours - start) / (least - start) == pytest.approx(DEFAULT_DOUBT**2)
    assert (most - start) / (blind.gpu_hours - start) == pytest.approx(DEFAULT_DOUBT**2)
    assert blind.cost == pytest.approx(4 * blind.gpu_hours)
    store = Store.open(tmp_path)
    commit_block(store, plan.cells[1].cell, ChunkId(plan.cells[1].cell_id, 0, 0), "1" * 16)
    known = seen(plan, tmp_path)
    least, most = known.gpu_hours_range
    assert (most - start) / (least - start) < DEFAULT_DOUBT**4 / 2
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(plan_command.page(blind))
    assert "GPU-hours, 0.0 to 0.1), 0.15 at the job's rate (0.09 to 0.38)" in console.export_text().replace("\n", " ")


def test_a_budget_in_money_is_hours_at_the_rate_of_the_gpu() -> None:
    more = "resources: {gpu: H200}\nexecution: {rates: {H200: 4}, budget: {gpu_hours: 9, dollars: 8}}\n"
    job = JobSpec.from_text(job_text(more=more))
    assert job.execution.hours("H200") == 2
    assert JobSpec.from_text(job_text()).execution.hours("any") is None
    with pytest.raises(UserError, match=r"execution\.budget\.dollars: there is no price .* 'any'.*rates: H200"):
        JobSpec.from_text(job_text(more="execution: {rates: {H200: 4}, budget: {dollars: 8}}\n"))


def test_a_policy_file_is_named_with_its_hash(tmp_path: Path) -> None:
    text = "from dataclasses import dataclass\nfrom policies.base import Scorer\n\n"
    (tmp_path / "mine.py").write_text(text + "@dataclass(frozen=True)\nclass Mine(Scorer):\n    name = 'mine'\n")
    job = JobSpec.from_text(job_text(arms="{policies: ['mine.py:Mine'], keep: 264, interval: 16}"), tmp_path / "j.yaml")
    plan = expand(job, Machine())
    (source,) = {planned.cell.policy.source for planned in plan.cells}
    assert f"policy file mine.py runs in every engine; hash {source}." in seen(plan, tmp_path / "none").notes
    assert len(source) == 16


def test_engines_that_differ_in_what_they_record_are_told_apart() -> None:
    plan = planned(job_text(arms="{policies: [random, snapkv, h2o], keep: 264, interval: 16}"))
    assert len(plan.engines) == 3
    plain, queries, attention = (plan_command.eviction(spec) for spec in plan.engines)
    assert plain == "keep ≤ 264, interval 16"
    assert "records recent_queries " in queries
    assert attention not in (plain, queries)


def test_the_work_list_has_longest_blocks_first_with_their_arms_side_by_side() -> None:
    plan = planned()
    done = plan.cells[1]
    problems = plan.prompts[done.cell.model, done.cell.task].problems
    rows = [Seen(source_of(done.cell), problem.problem_id, 4, 4000.0 + i) for i, problem in enumerate(problems)]
    chunks = work_list(plan, {ChunkId(done.cell_id, 0, 0)}, [(ChunkId(done.cell_id, 0, 1), 2)], learn(rows))
    books = Books(group_tokens={chunk.group: chunk.expected_tokens for chunk in chunks})
    for chunk in chunks:
        books.add(chunk)
    order = [entry.plan for entry in sorted(books.chunks.values(), key=lambda entry: entry.rank)]
    assert [chunk.chunk.block for chunk in order] == [1] * 7 + [0] * 6
    assert [chunk.arm for chunk in order] == [*range(7), 0, *range(2, 7)]
    assert {chunk.attempts for chunk in order if chunk.chunk.cell_id == done.cell_id} == {2}
    flat = work_list(plan, set(), (), NOTHING_LEARNED)
    assert {chunk.expected_tokens for chunk in flat} == {950.0}
