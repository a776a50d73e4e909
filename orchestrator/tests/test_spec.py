"""Job files: what a bad one prints, word for word, and what a good one means."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from orchestrator.errors import UserError
from orchestrator.spec import JobSpec
from orchestrator.tasks import registry as tasks
from policies.budget import BudgetMode, Overflow, Protection

JOBS = Path(__file__).parents[2] / "jobs"
GOOD = """\
name: test
models: [{path: embedded:reasoner, max_model_len: 2048}]
tasks: [{name: reasoner_w, limit: 16}]
arms:
  policies: [full, random]
  keep: 264
  interval: 16
samples: 1
sampling: {temperature: 0, max_tokens: 1500}
"""


def changed(**lines: str) -> str:
    """GOOD with whole lines replaced: `keep="  keep: 1"` replaces the line that sets keep."""
    text = GOOD.splitlines()
    for key, line in lines.items():
        index = next(i for i, old in enumerate(text) if old.strip().startswith(f"{key}:"))
        text[index] = line
    return "\n".join(text) + "\n"


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        JobSpec.from_text(text, "jobs/x.yaml")
    return str(caught.value)


TASKS = ", ".join(tasks.names())
BAD = [
    pytest.param(
        changed(keep="  kepe: 264"),
        "jobs/x.yaml:6: arms.kepe: unknown key; keys here: budget_mode, interval, keep, n_sink, overflow, policies, "
        "protection. Did you mean 'keep'?",
        id="unknown key",
    ),
    pytest.param(
        changed(arms="arms:\n  policies: [full, {name: random, protction: none}]").replace(
            "  policies: [full, random]\n", ""
        ),
        "jobs/x.yaml:5: arms.policies[1].protction: unknown key; keys here: budget_mode, interval, keep, n_sink, name, "
        "overflow, params, protection. Did you mean 'protection'?",
        id="unknown key of an arm",
    ),
    pytest.param(
        changed(name="title: test"),
        "jobs/x.yaml:1: name: this key is required. jobs/template.yaml explains it.\n"
        "jobs/x.yaml:1: title: unknown key; keys here: analysis, arms, engine, exclude, execution, include, models, "
        "name, protocol, resources, samples, sampling, seeds, tasks.",
        id="missing key",
    ),
    pytest.param(
        changed(keep='  keep: [264, "264"]'),
        "jobs/x.yaml:6: arms.keep[1]: '264' is not a whole number.",
        id="text for a number",
    ),
    pytest.param(
        changed(keep="  keep: 264.0"),
        "jobs/x.yaml:6: arms.keep[0]: 264.0 is not a whole number.",
        id="float for a number",
    ),
    pytest.param(
        changed(keep="  keep: true"), "jobs/x.yaml:6: arms.keep[0]: true is not a whole number.", id="flag for a number"
    ),
    pytest.param(
        changed(keep="  keep: 0"),
        "jobs/x.yaml:6: arms.keep[0]: 0 is not allowed; it must be at least 1.",
        id="no budget",
    ),
    pytest.param(
        changed(keep="  keep: []"),
        "jobs/x.yaml:6: arms.keep: must not be empty. Give at least one value, or remove the key.",
        id="empty list",
    ),
    pytest.param(
        changed(samples="samples: many"),
        "jobs/x.yaml:8: samples: 'many' is neither a number nor {min, max, until_width}.",
        id="text for a mapping",
    ),
    pytest.param(
        changed(sampling="sampling: {temperature: .nan, max_tokens: 1500}"),
        "jobs/x.yaml:9: sampling.temperature: nan is not a finite number.",
        id="not a number",
    ),
    pytest.param(
        changed(sampling="sampling: {temperature: 3, max_tokens: 1500}"),
        "jobs/x.yaml:9: sampling.temperature: 3 is not allowed; it must be at most 2.",
        id="too hot",
    ),
    pytest.param(
        changed(interval="  protection: promt"),
        "jobs/x.yaml:7: arms.protection[0]: 'promt' is not one of prompt, sinks, none. Did you mean 'prompt'?",
        id="unknown protection",
    ),
    pytest.param(
        changed(samples="protocol: publisched"),
        "jobs/x.yaml:8: protocol: 'publisched' is not one of ours, published. Did you mean 'published'?",
        id="unknown protocol",
    ),
    pytest.param(
        changed(samples="protocol: published", tasks="tasks: [{name: gpqa_diamond, mini: true, order: keyed}]"),
        "jobs/x.yaml:3: tasks[0].order: protocol published has order: published. Leave order out.",
        id="half of the published protocol",
    ),
    pytest.param(
        changed(samples="protocol: published", sampling="sampling: {temperature: 0.6, max_tokens: 1500, top_k: 20}"),
        "jobs/x.yaml:9: sampling.top_k: protocol published draws without top_k. Leave it out.",
        id="filters under the published protocol",
    ),
    pytest.param(
        changed(tasks="tasks: [reasoner_v]"),
        f"jobs/x.yaml:3: tasks[0]: unknown task 'reasoner_v'; known: {TASKS}. Did you mean 'reasoner_w'?",
        id="unknown task",
    ),
    pytest.param(
        changed(tasks="tasks: [{name: reasoner_w, limmit: 8}]"),
        "jobs/x.yaml:3: tasks[0]: task 'reasoner_w' has no option 'limmit'; keys: name, limit, steps, recap. "
        "Did you mean 'limit'?",
        id="unknown task option",
    ),
    pytest.param(
        changed(tasks="tasks: [reasoner_w, {name: reasoner_w, limit: 8}]"),
        "jobs/x.yaml:3: tasks[1]: listed twice. Remove one of them.",
        id="task twice",
    ),
    pytest.param(
        changed(models="models: [embedded:reasoner, embedded:reasoner]"),
        "jobs/x.yaml:2: models[1]: listed twice. Remove one of them.",
        id="model twice",
    ),
    pytest.param(
        changed(name="name: my job"),
        "jobs/x.yaml:1: name: 'my job' must be 1 to 64 letters, digits, '.', '_' or '-' and start with a letter or "
        "digit.",
        id="name that is no directory",
    ),
    pytest.param(
        changed(samples="samples: 4"),
        "jobs/x.yaml:8: samples: 4 samples at temperature 0 would be 4 copies of one text. Write samples: 1, or raise "
        "sampling.temperature.",
        id="greedy samples",
    ),
    pytest.param(
        changed(samples="samples: {min: 4, max: 2}", sampling="sampling: {temperature: 1, max_tokens: 9}"),
        "jobs/x.yaml:8: samples.max: max 2 is less than min 4.",
        id="samples upside down",
    ),
    pytest.param(
        changed(samples="samples: {min: 2, max: 4}", sampling="sampling: {temperature: 1, max_tokens: 9}"),
        "jobs/x.yaml:8: samples: min and max differ, so the stopping rule is needed. Add until_width, in points.",
        id="no stopping rule",
    ),
    pytest.param(
        changed(samples="analysis: {looks: [1, 1]}"),
        "jobs/x.yaml:8: analysis.looks: [1, 1] must rise: each look is after more samples than the one before.",
        id="looks",
    ),
    pytest.param(
        changed(samples="samples: 1\nanalysis: {looks: [1, 2]}"),
        "jobs/x.yaml:9: analysis.looks: a look after 2 samples is never reached; samples ends at 1.",
        id="late look",
    ),
    pytest.param(
        changed(samples="analysis: {reference: recent}"),
        "jobs/x.yaml:8: analysis.reference: 'recent' is not in this job; it has full, random.",
        id="reference that is no arm",
    ),
    pytest.param(
        changed(keep="  overflow: grow"),
        "jobs/x.yaml:5: arms.policies[1]: policy 'random' needs a budget. Add arms.keep (tokens per head), or keep to "
        "this arm.",
        id="no keep at all",
    ),
    pytest.param(
        changed(policies="  policies: [{name: full, keep: 264}, random]"),
        "jobs/x.yaml:5: arms.policies[0]: policy 'full' never evicts, so it takes no keep. Remove it here.",
        id="budget of full",
    ),
    pytest.param(
        changed(samples="exclude: [{policy: recnt}, {}]\ninclude: [{name: random, task: reasoner_q}]"),
        "jobs/x.yaml:8: exclude[0].policy: 'recnt' is not in this job; it has full, random.\n"
        "jobs/x.yaml:8: exclude[1]: an empty entry would exclude everything. Name at least one key.\n"
        "jobs/x.yaml:9: include[0].task: 'reasoner_q' is not in this job; it has reasoner_w. Did you mean "
        "'reasoner_w'?",
        id="include and exclude",
    ),
    pytest.param("- name: x\n", "jobs/x.yaml:1: a list is not a mapping (key: value lines).", id="a list at the top"),
    pytest.param(
        changed(
            models="models: {path: 7}",
            keep="  keep: -1",
            interval="  intervall: 16",
            sampling="sampling: {temperature: hot, max_tokens: 0}",
        ),
        "jobs/x.yaml:2: models[0].path: 7 is not text.\n"
        "jobs/x.yaml:6: arms.keep[0]: -1 is not allowed; it must be at least 1.\n"
        "jobs/x.yaml:7: arms.intervall: unknown key; keys here: budget_mode, interval, keep, n_sink, overflow, "
        "policies, protection. Did you mean 'interval'?\n"
        "jobs/x.yaml:9: sampling.max_tokens: 0 is not allowed; it must be at least 1.\n"
        "jobs/x.yaml:9: sampling.temperature: 'hot' is not a number.",
        id="five mistakes at once",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_a_bad_job_prints_exactly_this(text: str, message: str) -> None:
    assert sorted(refusal(text).splitlines()) == sorted(message.splitlines())


@pytest.mark.parametrize(
    ("arm", "pieces"),
    [
        ("radnom", ["jobs/x.yaml:5: arms.policies[1]", "'radnom'", "'random'?"]),
        ("{name: random, params: {sede: 1}}", ["jobs/x.yaml:5: arms.policies[1]", "'sede'", "random"]),
        ("missing.py:Mine", ["jobs/x.yaml:5: arms.policies[1]", "missing.py"]),
    ],
)
def test_a_bad_policy_is_refused_by_the_registry_with_its_place(arm: str, pieces: list[str]) -> None:
    message = refusal(changed(policies=f"  policies: [full, {arm}]"))
    assert all(piece in message for piece in pieces), message
    assert len(message.splitlines()) == 1


def test_mistakes_are_listed_in_the_order_of_the_file() -> None:
    message = refusal(changed(models="models: 1", keep="  keep: 0", sampling="sampling: 1"))
    assert [line.split(":")[1] for line in message.splitlines()] == ["2", "6", "9"]


def test_defaults_and_shorthands() -> None:
    job = JobSpec.from_text(changed(models="models: embedded:reasoner", tasks="tasks: reasoner_w"))
    assert (job.models[0].path, job.models[0].dtype, job.models[0].max_model_len) == (
        "embedded:reasoner",
        "bfloat16",
        None,
    )
    assert (job.tasks[0].name, job.tasks[0].limit) == ("reasoner_w", None)
    assert (job.arms.keep, job.arms.interval, job.arms.protection) == ((264,), (16,), (Protection.PROMPT,))
    assert (job.arms.budget_mode, job.arms.overflow) == (BudgetMode.TOTAL, Overflow.GROW)
    assert job.samples is not None
    assert (job.samples.min, job.samples.max, job.samples.adaptive) == (1, 1, False)
    assert JobSpec.from_text(changed(samples="")).samples is None
    assert (job.seeds.sampling, job.seeds.eviction) == (0, 0)
    assert (job.analysis.reference, job.execution.store, job.resources.gpu) == ("random", "./store", "any")


def test_task_options_stand_beside_the_name() -> None:
    job = JobSpec.from_text(changed(tasks='tasks: [{name: reasoner_w, limit: 8, steps: "44-48"}]'))
    assert job.tasks[0].options() == {"steps": "44-48"}


def test_adaptive_samples_parse() -> None:
    text = changed(
        samples="samples: {min: 4, max: 16, until_width: 4}", sampling="sampling: {temperature: 1, max_tokens: 9}"
    )
    samples = JobSpec.from_text(text).samples
    assert samples is not None
    assert (samples.min, samples.max, samples.until_width, samples.adaptive) == (4, 16, 4.0, True)


def test_resolved_holds_every_key_and_loads_again() -> None:
    job = JobSpec.load(JOBS / "template.yaml")
    again = JobSpec.from_text(yaml.safe_dump(dict(job.resolved())), JOBS / "again.yaml")
    assert again.resolved() == job.resolved()
    assert set(job.resolved()) == set(JobSpec.model_fields)


# Files of `evictbench probe` lie beside the jobs; orchestrator/probes tests them.
SHIPPED = sorted(path for path in JOBS.rglob("*.yaml") if not path.name.startswith("probes_"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_jobs_load(path: Path) -> None:
    JobSpec.load(path)


TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=8)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
TEMPLATE = JobSpec.load(JOBS / "template.yaml").source


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_value_anywhere_is_a_job_or_a_user_mistake(data: st.DataObject) -> None:
    """Whatever stands at a place of the template, the answer is a job or a paragraph that names the file."""
    document = {"job": copy.deepcopy(TEMPLATE.data)}
    parent: Any = document
    key: str | int = "job"
    for part in data.draw(st.sampled_from(sorted(TEMPLATE.lines, key=str))):
        parent, key = parent[key], part
    parent[key] = data.draw(junk)
    text = yaml.safe_dump(document["job"], allow_unicode=True)
    with contextlib.suppress(UserError):
        JobSpec.from_text(text)
        return
    assert all(line.startswith("jobs/x.yaml:") for line in refusal(text).splitlines())


def test_the_template_shows_every_key() -> None:
    """A key that is added to a model must be explained in the template, at its own place or in a comment."""
    text = (JOBS / "template.yaml").read_text()
    written = JobSpec.load(JOBS / "template.yaml").source.lines
    shown = {tuple(part for part in loc if isinstance(part, str)) for loc in written}
    # An include entry is an arm with two keys of its own; its other keys are explained where arms are.
    shown |= {("include", path[-1]) for path in shown if path[:2] == ("arms", "policies")}
    comments = _comments(text)
    assert [path for path in _paths(JobSpec, ()) if path not in shown and path[-1] not in comments] == []


def _paths(model: type[BaseModel], at: tuple[str, ...]) -> list[tuple[str, ...]]:
    found = []
    for name, field in model.model_fields.items():
        found.append((*at, name))
        for inner in _models(field.annotation):
            found += _paths(inner, (*at, name))
    return found


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _comments(text: str) -> set[str]:
    comments = " ".join(line.partition("#")[2] for line in text.splitlines())
    return set(comments.replace(",", " ").replace("{", " ").replace(":", " ").split())
