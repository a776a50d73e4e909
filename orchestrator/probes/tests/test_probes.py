"""Instances are keyed and equal in shape, placements mean what they say, statistics agree with hand arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.errors import UserError
from orchestrator.models import resolve
from orchestrator.probes import sites
from orchestrator.probes.instances import Instance, Layout, TextGrammar
from orchestrator.probes.job import ProbeJob
from orchestrator.probes.reasoner import Answered, ReasonerGrammar
from orchestrator.probes.scaling import scaled
from orchestrator.probes.session import Session
from orchestrator.probes.statistics import ratio, recall, survival_curve
from orchestrator.probes.study import Study, arm_runs
from orchestrator.prompts import Renderer
from orchestrator.store.tests.stores import Arm, build_store
from orchestrator.tasks.reasoner import reference_text
from orchestrator.tasks.registry import get

ROOT = Path(__file__).parents[3]
RENDERER = Renderer(resolve("embedded:reasoner"))
JOB = """
name: tiny
model: {path: embedded:reasoner, dtype: float32}
instances: 3
search: 2
arms: {policies: [random, h2o], keep: 96, interval: 16}
probes:
  - {kind: passcode, lead: 30, distance: 120}
  - {kind: restated, lead: 30, distance: 60, gap: 40, times: 2}
"""


def letters(text: str) -> list[int]:
    return [ord(character) for character in text]


def answered(task: str, count: int) -> list[Answered]:
    problems = get(task, steps="20").problems(count)
    texts = [reference_text(problem) for problem in problems]
    return [
        Answered(RENDERER.render(problem.messages).token_ids, tuple(RENDERER.encode(text)), text)
        for problem, text in zip(problems, texts, strict=True)
    ]


def text_of(tokens: Iterable[int]) -> str:
    return "".join(map(chr, tokens))


def test_text_instances_are_keyed_hold_their_facts_and_have_equal_lengths() -> None:
    filler = ["Nothing here. " * 40, "Other words; 4 and 12. " * 30, "a passcode would be left out " * 20]
    layout = Layout(lead=50, distance=80, gap=60, times=3)
    made = [TextGrammar(letters, letters("<stub>"), filler, seed=7).instance(layout, index) for index in range(6)]
    again = TextGrammar(letters, letters("<stub>"), filler, seed=7).instance(layout, 4)
    assert again == made[4]
    assert len({(len(each.tokens), each.reads) for each in made}) == 1
    assert len({each.values for each in made}) > 1
    for each in made:
        ((name, places),), ((first, end),) = each.facts.items(), each.reads
        text = text_of(each.tokens)
        assert text[first:end] == each.values[0]
        statement = f"\nLet {name} = {each.values[0]}. Remember it.\n"
        assert text.count(statement) == 3
        assert text_of(each.tokens[place] for place in places) == statement * 3
        starts = [text.index(statement)]
        assert starts[0] == 6 + 50
        assert places[len(statement)] - places[0] == 60
        assert first - places[-1] - 1 == 80 + len(f"\nRecall: {name} = ")
    other = TextGrammar(letters, letters("<stub>"), filler, seed=8).instance(layout, 4)
    assert other.tokens != made[4].tokens


def test_operands_of_a_program_are_every_mention_since_they_were_written() -> None:
    grammar = ReasonerGrammar(RENDERER.encode, [], answered("reasoner_p", 4), seed=0)
    for index in range(4):
        instance = grammar.instance(Layout(200, 150, facts=2), index)
        text = RENDERER.decode(instance.tokens)
        line = text.rpartition("\n")[2]
        assert instance.values == (line[7:9], line[10:12])
        for (name, places), register, value in zip(
            instance.facts.items(), (line[4], line[5]), instance.values, strict=True
        ):
            said = RENDERER.decode([instance.tokens[place] for place in places])
            # the addition that gave the value, the write, then recaps and reads of the same value
            addition, written, rest = said.rpartition(f">{register}")
            assert not written or (addition.startswith(":") and addition.endswith(value[0])), name
            digits = rest.replace(register, "")
            assert digits == value * (len(digits) // 2)
        assert [RENDERER.decode(instance.tokens[a:b]) for a, b in instance.reads] == list(instance.values)


def test_placements_pin_and_ban_complementary_heads() -> None:
    instance = Instance("k", tuple(range(20)), 2, {"a": (4, 5, 6), "b": (8, 9)}, ((18, 20),), ("x",))
    pinned, banned = sites.apart(0, 3)["both"].masks(instance, layers=2, heads=4)
    assert pinned[:, 0, 4:7].all()
    assert pinned[:, 3, 8:10].all()
    assert pinned.sum() == 2 * (3 + 2)
    facts = [4, 5, 6, 8, 9]
    assert (pinned[..., facts] ^ banned[..., facts]).all()
    assert banned.sum() == 2 * 5 * 4 - pinned.sum()
    placement, rotation = sites.scattered(frozenset({1, 2, 3}))
    alone = Instance("k", tuple(range(20)), 2, {"a": (4, 5, 6, 7)}, ((18, 20),), ("x",))
    cut, _ = placement.masks(alone, layers=1, heads=4)
    assert [frozenset(np.flatnonzero(cut[0, :, place])) for place in (4, 5, 6, 7)] == [*rotation, rotation[0]]
    # the published mass: sixteen tokens, two heads each, over three pairs
    assert [round(32 * share) for share in sites.shares(16, rotation).values()] == [12, 10, 10]


def test_statistics_by_hand() -> None:
    deleted, kept = np.array([-10.0, -8.0]), np.array([0.0, -2.0])
    value, (low, high) = ratio(np.array([-5.0, -8.0]), deleted, kept)
    assert value == pytest.approx(5 / 16)
    assert low <= value <= high
    found = recall([True, False], [True, True], np.array([-5.0, -8.0]), (deleted, kept))
    assert (found.retrieval, found.free, found.log_prob, found.r) == (0.5, 1.0, -6.5, value)
    alive = np.zeros((1, 3, 1, 2, 2), bool)
    alive[0, 0] = True
    alive[0, 1, 0, 0] = True
    # token 1 is a candidate from the second event on
    curve = survival_curve(alive, np.array([0, 1]), chance=0.5)
    assert [(point.events, point.per_head, point.union) for point in curve] == [
        (1, 0.75, 1.0), (2, 0.25, 0.5), (3, 0.0, 0.0),
    ]  # fmt: skip
    assert curve[1].per_head_theory == 0.25
    assert curve[1].union_theory == 1 - 0.75**2


@dataclass
class Listening:
    """A model that recalls a fact iff it is pinned in head 2, and better if in head 0 as well."""

    layers: int = 1
    heads: int = 4

    def read(self, scripts: Sequence[Any], eviction: Any, interval: int) -> list[Any]:
        return [self._reading(script) for script in scripts]

    def _reading(self, script: Any) -> Any:
        homes = script.pinned[0].any(-1) if script.pinned is not None else np.ones(self.heads, bool)
        gain = float(4 * homes[2] + 2 * homes[0] + 0.5 * homes[1])
        hit = bool(homes[2])
        return _Reading(((gain - 9.0,),), ((hit,),), (), np.zeros((2, 1, self.heads, len(script.watched)), bool))


@dataclass
class _Script:
    tokens: Any
    prompt: int
    reads: Any
    seed: int
    pinned: Any
    banned: Any
    watched: Any


@dataclass
class _Reading:
    logprobs: Any
    hits: Any
    free: Any
    alive: Any


def test_the_search_finds_the_heads_and_reports_them_on_other_instances(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.partition("probes:")[0] + "probes: [{kind: planted_fact, lead: 30, distance: 100}]\n")
    job, labels = ProbeJob.load(file), list[str]()
    grammar = ReasonerGrammar(RENDERER.encode, answered("reasoner_w", 5), [], seed=0)
    results = Study(job, Listening(), grammar, _Script, labels.append).run()
    arms = {row.arm: row.recall for row in results.rows}
    assert list(arms)[:7] == ["deleted", "kept", "{2}", "{0}", "{1}", "{3}", "{0,2}"]
    assert {"{0,1,2}", "{1,2}", "{0,1}", "scattered over {0,1,2}"} <= set(arms)
    assert arms["{0,2}"].r == pytest.approx(6 / 6.5)
    assert (arms["{2}"].retrieval, arms["{0}"].retrieval) == (1.0, 0.0)
    assert len(labels) == len(list(arm_runs(job, 4)))
    searched = {grammar.instance(Layout(30, 100), index).key for index in range(2)}
    assert searched.isdisjoint(record.key for record in results.records)


@pytest.mark.slow
def test_the_command_runs_on_the_reasoner(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    run = CliRunner().invoke(main, ["probe", str(file), "--out", str(tmp_path / "out"), "--instances", "3"])
    assert run.exit_code == 0, run.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "results.csv", "survival.csv", "records.csv", "probes.json",
    }  # fmt: skip
    assert "full cache" in run.output
    rows = (tmp_path / "out" / "results.csv").read_text().splitlines()
    assert rows[0].startswith("probe,variant,arm,fact,events,n,retrieval")
    # the reasoner recalls a passcode from its full cache
    assert next(row for row in rows if "full cache" in row).split(",")[6] == "1.0"


def test_what_cannot_be_probed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("kind: passcode", "kind: passcod"))
    with pytest.raises(UserError, match="passcod"):
        ProbeJob.load(file)
    file.write_text(JOB.replace(", keep: 96", ""))
    with pytest.raises(UserError, match="need a budget"):
        ProbeJob.load(file)
    file.write_text(JOB.replace("h2o", "random_inplace"))
    refused = CliRunner().invoke(main, ["probe", str(file), "--out", str(tmp_path)])
    assert refused.exit_code == 2
    assert "it has no events" in refused.output


def test_filler_comes_from_the_models_full_rows_in_a_store(tmp_path: Path) -> None:
    build_store(tmp_path / "store", [Arm("full", "1110"), Arm("random", "1101")])
    job = ProbeJob.load(ROOT / "jobs" / "paper" / "probes_qwen3_4b.yaml")
    model = replace(resolve("embedded:reasoner"), revision="sha-of-weights")
    texts = Session(job, model, None, _Script)._stored(str(tmp_path / "store"))
    assert len(texts) == 4
    assert all(texts)
    assert not any("think>" in text for text in texts)
    with pytest.raises(UserError, match="no full-cache row"):
        Session(job, replace(model, revision="other"), None, _Script)._stored(str(tmp_path / "store"))


def test_the_papers_probes_keep_its_budget_and_run_in_small() -> None:
    job = ProbeJob.load(ROOT / "jobs" / "paper" / "probes_qwen3_4b.yaml")
    assert (job.arms.keep, job.arms.interval) == ((1088,), (64,))
    small = scaled(job, 0.01)
    assert (small.model.path, small.instances) == ("embedded:reasoner", 8)
    assert all(layout.tokens <= 860 for probe in small.probes for layout in probe.layouts().values())
    assert [probe.kind for probe in small.probes] == [probe.kind for probe in job.probes]
