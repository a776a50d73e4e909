"""Expansion: the grid is the product minus excludes, identity is content, rows carry keyed seeds."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chunks import BLOCK, ChunkId, blocks_for
from orchestrator.errors import UserError
from orchestrator.grid import Plan, expand
from orchestrator.seeds import eviction_seed, sample_seed
from orchestrator.spec import JobSpec
from orchestrator.tests.machines import Machine, job_text


def planned(text: str, machine: Machine | None = None) -> Plan:
    return expand(JobSpec.from_text(text, "jobs/x.yaml"), machine or Machine())


def refusal(text: str, machine: Machine | None = None) -> list[str]:
    with pytest.raises(UserError) as caught:
        planned(text, machine)
    return str(caught.value).splitlines()


axis = st.lists(st.integers(100, 900), min_size=1, max_size=3, unique=True)
protections = st.lists(st.sampled_from(["prompt", "sinks", "none"]), min_size=1, max_size=3, unique=True)
policies = st.lists(st.sampled_from(["random", "random_shared", "random_inplace"]), min_size=1, max_size=3, unique=True)


@settings(max_examples=40, deadline=None)
@given(
    policies, axis, st.lists(st.sampled_from([8, 16, 32]), min_size=1, max_size=2, unique=True), protections, st.data()
)
def test_the_grid_is_the_product_minus_excludes(
    names: list[str], keeps: list[int], intervals: list[int], rules: list[str], data: st.DataObject
) -> None:
    points = list(product(names, keeps, intervals, rules))
    excluded = data.draw(st.lists(st.sampled_from(points), max_size=len(points) - 1, unique=True))
    arms = {"policies": names, "keep": keeps, "interval": intervals, "protection": rules}
    keys = ("policy", "keep", "interval", "protection")
    text = yaml.safe_dump({"exclude": [dict(zip(keys, point, strict=True)) for point in excluded]})
    plan = planned(job_text(arms=str(arms), more=text))
    found = [
        (cell.policy.name, cell.budget.keep, cell.budget.interval, cell.protection.value)
        for cell in (planned.cell for planned in plan.cells)
        if cell.budget and cell.protection
    ]
    assert found == [point for point in points if point not in excluded]


def test_full_runs_once_per_model_and_task_in_a_stock_engine() -> None:
    plan = planned(job_text(arms="{policies: [random, full, full], keep: [264, 300], interval: [16, 64]}"))
    full = [cell for cell in plan.cells if cell.cell.policy.name == "full"]
    assert len(full) == 1
    assert full[0].cell.budget is None
    assert (full[0].engine.keep_ceiling, full[0].engine.interval, full[0].engine.needs) == (0, 0, ())
    assert [spec for spec, cells in plan.engines.items() if full[0] in cells] == [full[0].engine]
    assert plan.notes == ("full is in the job more than once and runs once.",)


def test_include_adds_arms_and_overrides_win() -> None:
    recent = "{name: recent, keep: [300, 400], protection: none, budget_mode: plus_buffer}"
    arms = f"{{policies: [random, {recent}], keep: 264, interval: 16}}"
    plan = planned(job_text(arms=arms, more="include: [{name: random, keep: 132}]"))
    assert [cell.arm.title for cell in plan.cells] == [
        "random K264 r16 prompt",
        "recent K316 r16 none",
        "recent K416 r16 none",
        "random K132 r16 prompt",
    ]


def test_windows_that_are_equal_by_definition_are_one_arm() -> None:
    arms = "{policies: [recent, streaming_llm], keep: 264, interval: 16, protection: [prompt, sinks, none]}"
    plan = planned(job_text(arms=arms))
    assert [cell.cell.arm_label for cell in plan.cells] == [
        "recent K264 r16 prompt",
        "streaming_llm K264 r16 sinks",
        "recent K264 r16 none",
    ]
    assert {cell.arm.reference for cell in plan.cells} == {"recent", "streaming_llm"}
    assert plan.notes == (
        "recent K264 r16 sinks equals streaming_llm K264 r16 sinks by definition and runs as that.",
        "streaming_llm K264 r16 prompt equals recent K264 r16 prompt by definition and runs as that.",
        "streaming_llm K264 r16 sinks is in the job more than once and runs once.",
        "streaming_llm K264 r16 none equals recent K264 r16 none by definition and runs as that.",
    )


def test_budgets_that_resolve_to_one_pair_are_one_cell() -> None:
    arms = "{policies: [random, {name: random, keep: 248, budget_mode: plus_buffer}], keep: 264, interval: 16}"
    plan = planned(job_text(arms=arms))
    assert len(plan.cells) == 1
    assert plan.notes == ("random K264 r16 prompt is in the job more than once and runs once.",)


def test_engines_are_shared_by_interval_and_by_costly_needs(tmp_path: Path) -> None:
    code = "from dataclasses import dataclass\nfrom policies.base import Needs, Scorer\n"
    for name, needs in (("Near", "recent_queries=16"), ("Far", "recent_queries=64"), ("Mass", "attention='step'")):
        code += f"\n\n@dataclass(frozen=True)\nclass {name}(Scorer):\n    name = '{name}'\n    needs = Needs({needs})\n"
    (tmp_path / "mine.py").write_text(code)
    names = "random, recent, random_inplace, mine.py:Near, mine.py:Far, mine.py:Mass"
    text = job_text(arms=f"{{policies: [{names}], keep: [128, 264], interval: [16, 32]}}")
    plan = expand(JobSpec.from_text(text, tmp_path / "job.yaml"), Machine())
    shared = [
        (spec.interval, dict(spec.needs).get("recent_queries"), sorted({cell.arm.policy.name for cell in cells}))
        for spec, cells in plan.engines.items()
    ]
    plain, queries = ["random", "random_inplace", "recent"], ["Far", "Near"]
    assert shared == [
        entry for group in ((None, plain), (64, queries), (None, ["Mass"])) for entry in ((16, *group), (32, *group))
    ]
    assert {spec.keep_ceiling for spec in plan.engines} == {264}


def test_the_keep_ceiling_counts_what_the_longest_prompt_grows_to() -> None:
    plan = planned(
        job_text(arms="{policies: [random], keep: 60, interval: 16}", more="").replace("limit: 16", "limit: 8")
    )
    longest = max(plan.prompts[plan.cells[0].cell.model, plan.cells[0].cell.task].lengths)
    assert longest == 39
    assert plan.cells[0].engine.max_prompt_tokens == longest
    assert plan.cells[0].engine.keep_ceiling == 60
    tight = planned(job_text(arms="{policies: [{name: random, protection: none}], keep: 40, interval: 16}"))
    assert tight.cells[0].engine.keep_ceiling == longest + 16


def test_a_limit_rounds_up_to_whole_blocks_and_says_so() -> None:
    plan = planned(job_text().replace("limit: 16", "limit: 9"))
    assert {cell.n_problems for cell in plan.cells} == {16}
    assert plan.notes == ("reasoner_w: limit 9 rounds up to 16 problems (whole blocks of 8).",)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4), st.integers(1, 4))
def test_growing_renames_and_reruns_nothing(limit: int, more_limit: int, samples: int, more_samples: int) -> None:
    small = planned(job_text(samples=samples).replace("limit: 16", f"limit: {limit}"))
    large = planned(job_text(samples=samples + more_samples).replace("limit: 16", f"limit: {limit + more_limit}"))
    before, after = small.missing(()), large.missing(())
    assert set(before) <= set(after)
    assert set(large.missing(before)) == set(after) - set(before)
    assert [small.build(chunk, 0) for chunk in before[:3]] == [large.build(chunk, 0) for chunk in before[:3]]
    cell = small.cells[0]
    assert len(before) == len(small.cells) * samples * blocks_for(cell.n_problems)


def test_without_a_number_the_task_says_how_many_samples() -> None:
    sampled = planned(job_text(samples="null").replace("reasoner_w, limit: 16", "math500, mini: true"))
    assert {cell.samples_max for cell in sampled.cells} == {2}
    greedy = planned(job_text(samples="null").replace("temperature: 0.6", "temperature: 0"))
    assert {cell.samples_max for cell in greedy.cells} == {1}


def test_missing_chunks_interleave_the_arms_of_an_engine() -> None:
    plan = planned(job_text(arms="{policies: [full, random, recent], keep: 264, interval: 16}", samples=2))
    full, random, recent = (cell.cell_id for cell in plan.cells)
    order = [(chunk.cell_id, chunk.sample, chunk.block) for chunk in plan.missing({ChunkId(random, 0, 0)})]
    assert order == [
        *((full, sample, block) for sample in range(2) for block in range(2)),
        (recent, 0, 0),
        *((cell, 0, 1) for cell in (random, recent)),
        *((cell, 1, block) for block in range(2) for cell in (random, recent)),
    ]


def test_rows_carry_prompts_in_order_and_seeds_that_know_no_policy() -> None:
    plan = planned(job_text(arms="{policies: [full, random], keep: 264, interval: 16}", samples=2))
    full, random = (plan.build(ChunkId(cell.cell_id, 1, 1), 2) for cell in plan.cells)
    problems = plan.prompts[plan.cells[0].cell.model, plan.cells[0].cell.task].problems[BLOCK : 2 * BLOCK]
    assert [row.problem_id for row in full.rows] == [problem.problem_id for problem in problems]
    for one, other, problem in zip(full.rows, random.rows, problems, strict=True):
        assert one.request.prompt_token_ids == tuple(map(ord, problem.messages[0]["content"]))
        assert one.sample_seed == one.request.sampling.seed == other.sample_seed
        assert one.sample_seed == sample_seed(0, "reasoner_w", problem.problem_id, 1)
        assert one.request.eviction is None
        assert other.request.eviction is not None
        assert other.request.eviction.seed == eviction_seed(0, "reasoner_w", problem.problem_id, 1)
        assert (other.request.eviction.keep, other.request.eviction.recent) == (264, 16)
        assert other.request.request_id == f"{random.chunk.cell_id}/{problem.problem_id}/1@2"
        assert problem.gold not in repr(other.request.request_id)


def test_base_seeds_are_separate() -> None:
    rows = {}
    for more in ("", "seeds: {sampling: 1}", "seeds: {eviction: 1}"):
        plan = planned(job_text(arms="{policies: [random], keep: 264, interval: 16}", more=more))
        row = plan.build(plan.missing(())[0], 0).rows[0]
        assert row.request.eviction is not None
        rows[more] = (plan.cells[0].cell_id, row.sample_seed, row.request.eviction.seed)
    plain, sampled, evicted = rows.values()
    assert len({plain[0], sampled[0], evicted[0]}) == 3
    assert (plain[1] == evicted[1], plain[2] == sampled[2]) == (True, True)
    assert (plain[1] == sampled[1], plain[2] == evicted[2]) == (False, False)


def test_a_policy_from_a_file_is_named_by_its_content(tmp_path: Path) -> None:
    code = (
        "from dataclasses import dataclass\nfrom policies.base import Scorer\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Scorer):\n    name = 'mine'\n    strength: int = 2\n"
    )
    found = []
    for folder, body in (("a", code), ("b", code), ("c", code + "\n# changed\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(body)
        arm = "{name: mine.py:Mine, params: {strength: 3}}"
        text = job_text(
            arms=f"{{policies: [{arm}], keep: 264, interval: 16}}", more="analysis: {reference: mine.py:Mine}"
        )
        plan = expand(JobSpec.from_text(text, tmp_path / folder / "job.yaml"), Machine())
        found.append(plan.cells[0])
        assert plan.cells[0].arm.reference == f"{(tmp_path / folder / 'mine.py').resolve()}:Mine"
    same, moved, changed = found
    assert same.cell.label == "reasoner reasoner_w mine.py:Mine(strength=3) K264 r16 prompt"
    assert same.cell_id == moved.cell_id
    assert same.cell_id != changed.cell_id


def test_labels_show_what_is_unusual() -> None:
    arms = (
        "{policies: [full, random, {name: random, budget_mode: total_no_recent}, {name: random, overflow: per_arm}], "
        "keep: 264, interval: 16}"
    )
    assert [cell.cell.arm_label for cell in planned(job_text(arms=arms)).cells] == [
        "full",
        "random K264 r16 prompt",
        "random K264 r16 prompt recent0",
        "random K264 r16 prompt overflow=per_arm",
    ]


def test_simulated_rows_never_share_a_cell_with_real_ones() -> None:
    real, simulated = planned(job_text()), planned(job_text(more="engine: {kind: simulated}"))
    assert not {cell.cell_id for cell in real.cells} & {cell.cell_id for cell in simulated.cells}


INFEASIBLE = [
    pytest.param(
        job_text(arms="{policies: [random], keep: 50, interval: 16}"),
        "jobs/x.yaml:4: arms.keep: random K50 r16 prompt: keep 50 cannot hold the shortest prompt of reasoner_w "
        "(39 tokens) and the 16 newest tokens. Give keep at least 55.",
        id="prompt and buffer",
    ),
    pytest.param(
        job_text(arms="{policies: [{name: random, keep: 18, protection: sinks}], interval: 16}"),
        "jobs/x.yaml:4: arms.policies[0].keep: random K18 r16 sinks: keep 18 cannot hold 4 sinks and the 16 newest "
        "tokens. Give keep at least 20.",
        id="sinks and buffer",
    ),
    pytest.param(
        job_text(arms="{policies: [random], keep: 10, interval: 16, protection: none}"),
        "jobs/x.yaml:4: arms.keep: random K10 r16 none: keep 10 cannot hold the 16 newest tokens. Give keep at "
        "least 16.",
        id="buffer alone",
    ),
    pytest.param(
        job_text(arms="{policies: [random], keep: 16, interval: 16, protection: none}"),
        "jobs/x.yaml:4: arms.keep: random K16 r16 none: keep 16 must be larger than interval 16, the tokens between "
        "events. Give keep at least 17, or a smaller interval.",
        id="nothing to select",
    ),
    pytest.param(
        job_text(arms="{policies: [random], keep: 50, interval: 16, protection: none, overflow: refuse}"),
        "jobs/x.yaml:4: arms.keep: random K50 r16 none: with overflow refuse, keep 50 must hold the longest prompt of "
        "reasoner_w (39 tokens) and the 16 newest tokens. Give keep at least 55, or choose overflow grow.",
        id="overflow refuse",
    ),
    pytest.param(
        job_text(arms="{policies: [random_inplace], keep: 50, interval: 16, budget_mode: total_no_recent}"),
        "jobs/x.yaml:4: arms.keep: random_inplace K50 r16 prompt: random_inplace overwrites unprotected slots and "
        "needs at least 16 of them (interval); keep 50 leaves 11. Give keep at least 55.",
        id="in-place room",
    ),
    pytest.param(
        job_text(max_tokens=2010),
        "jobs/x.yaml:6: sampling.max_tokens: the longest prompt of reasoner_w (w26-32-r8-000000, 39 tokens) plus "
        "max_tokens 2010 exceeds max_model_len 2048 of embedded:reasoner. Write max_tokens 2009 or less, or raise "
        "max_model_len.",
        id="context",
    ),
    pytest.param(
        job_text().replace("max_model_len: 2048", "max_model_len: 39"),
        "jobs/x.yaml:2: models: the longest prompt of reasoner_w (w26-32-r8-000000, 39 tokens) leaves no room in "
        "max_model_len 39 of embedded:reasoner. Raise max_model_len (the model's window is 4096), or leave the "
        "task out.",
        id="prompt longer than the context",
    ),
    pytest.param(
        job_text().replace("max_model_len: 2048", "max_model_len: 5000"),
        "jobs/x.yaml:2: models[0].max_model_len: 5000 is longer than the window of embedded:reasoner (4096 tokens). "
        "Write at most 4096.",
        id="window",
    ),
    pytest.param(
        job_text(more="resources: {tp: 3}"),
        "jobs/x.yaml:7: resources.tp: 3 does not divide the 4 KV heads of embedded:reasoner. Choose a divisor.",
        id="tensor parallel",
    ),
    pytest.param(
        job_text(more="exclude: [{keep: 263}]"),
        "jobs/x.yaml:7: exclude[0]: matches no point of the grid. Mend or remove it.",
        id="idle exclude",
    ),
    pytest.param(
        job_text(more="exclude: [{task: reasoner_w}]"),
        "jobs/x.yaml:7: exclude: the excludes leave no point of the grid. Remove some.",
        id="nothing left",
    ),
]


@pytest.mark.parametrize(("text", "message"), INFEASIBLE)
def test_what_cannot_run_prints_exactly_this(text: str, message: str) -> None:
    assert refusal(text) == [message]


def test_every_infeasible_point_is_reported_at_once() -> None:
    text = job_text(arms="{policies: [random, recent], keep: [50, 264, 20], interval: 16}", max_tokens=3000)
    context, *budgets = refusal(text)
    assert context.startswith("jobs/x.yaml:6: sampling.max_tokens: ")
    assert [line.split(": ")[2] for line in budgets] == [
        f"{policy} K{keep} r16 prompt" for policy in ("random", "recent") for keep in (50, 20)
    ]


def test_missing_models_and_impossible_task_options_are_reported_together() -> None:
    text = job_text().replace("[{path: embedded:reasoner, max_model_len: 2048}]", "[a/b, c/d]")
    text = text.replace("limit: 16", "steps: 9-2")
    lines = refusal(text, Machine(absent=frozenset({"a/b", "c/d"})))
    assert lines[:2] == [
        f"jobs/x.yaml:2: models[{i}].path: no model at '{path}'." for i, path in enumerate(("a/b", "c/d"))
    ]
    assert lines[2].startswith("jobs/x.yaml:3: tasks[0]: task 'reasoner_w': steps '9-2' must rise")


def test_the_notes_name_prompts_that_do_not_fit_and_budgets_that_never_evict() -> None:
    plan = planned(job_text(arms="{policies: [{name: random, protection: none}], keep: [50, 2000], interval: 16}"))
    assert plan.notes == (
        "reasoner_w: 16 of 16 prompts do not fit keep 50 beside 16 newest tokens; overflow grow applies.",
        "reasoner_w: at keep 2000 nothing is ever evicted, no row outgrows 1539 tokens.",
    )


def test_the_demo_expands_on_this_machine() -> None:
    """The real checkpoint, its tokenizer and the real task."""
    plan = expand(JobSpec.load(Path(__file__).parents[2] / "jobs" / "demo.yaml"))
    assert [cell.cell.label for cell in plan.cells] == [
        "reasoner reasoner_w full",
        "reasoner reasoner_w random K264 r16 prompt",
        "reasoner reasoner_w random K264 r16 none",
        "reasoner reasoner_w recent K264 r16 prompt",
        "reasoner reasoner_w recent K264 r16 none",
        "reasoner reasoner_w random_inplace K264 r16 prompt",
        "reasoner reasoner_w streaming_llm K264 r16 sinks",
    ]
    assert {cell.n_problems for cell in plan.cells} == {104}
    assert [spec.needs for spec in plan.engines] == [(), ()]
    lengths = {length for prompts in plan.prompts.values() for length in prompts.lengths}
    assert lengths == {43}
