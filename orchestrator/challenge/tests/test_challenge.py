"""Fits, splits, verdicts and pages of a challenge, without an engine; the run itself is the run machinery's."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from orchestrator import campaign
from orchestrator.cells import Cell
from orchestrator.challenge import design, page, session, verdict
from orchestrator.challenge.design import Challenger, Setting
from orchestrator.challenge.fit import Fit, fit
from orchestrator.challenge.page import Tax, Verdict
from orchestrator.chunks import ChunkId
from orchestrator.commands.challenge import command
from orchestrator.errors import UserError
from orchestrator.spec import JobSpec
from orchestrator.stats.survival import age_bins, tokens_per_bin
from orchestrator.store.reader import Reader
from orchestrator.store.tests.stores import Arm, _trace, build_store, commit_block
from policies import registry
from policies.base import Needs
from workers.api import AGE_BINS, EvictionTrace

SOURCE = """\
from dataclasses import dataclass
from policies.base import Scorer


@dataclass(frozen=True)
class Mine(Scorer):
    order: float = 2.0

    def score(self, view):
        return -view.need("keys").norm(p=self.order, dim=-1)
"""
WHERE = Setting("embedded:reasoner", "reasoner_w", 264, 16, 8, 16, 1, 2048, {"temperature": 0, "max_tokens": 1500})


@pytest.fixture
def mine(tmp_path: Path) -> Challenger:
    (tmp_path / "mine.py").write_text(SOURCE)
    return Challenger(f"{tmp_path}/mine.py:Mine", {"order": 1.0})


def ages(prompt: int, length: int, share: float) -> Any:
    """Tokens that a head holds by age: all of the prompt and of ages to 15, this share of the older ones."""
    fixed = np.bincount(age_bins(np.arange(length - prompt, length)), minlength=AGE_BINS)
    tokens = tokens_per_bin(np.array([length]), AGE_BINS) - fixed
    return np.where(np.arange(AGE_BINS) <= 4, tokens, share * tokens) + fixed


def traces(share: float, union: float, pairs: int = 4) -> pd.DataFrame:
    """Two traces whose evictable tokens beyond age 16 are held with one chance; the prompt of 40 always is."""
    prompt, length = 40, 1000
    row = {"problem_id": "p", "n_prompt": prompt, "n_output": length + 1 - prompt, "events": 50}
    row |= {"age_histogram": pairs * ages(prompt, length, share), "union_alive": prompt + union * (length - prompt)}
    return pd.DataFrame([row, row])


def test_the_nulls_take_ages_and_overlap_of_evictable_tokens_only() -> None:
    found = fit(traces(0.25, 0.5), protected=True)
    assert found.survival[:5] == (1.0,) * 5
    assert found.survival[5:] == pytest.approx([0.25] * (len(found.survival) - 5))
    old = (960 - 16) / 960
    alone, together = old * (1 - 0.75**4) + (1 - old), old * 0.25 + (1 - old)
    assert found.independent == pytest.approx(alone)
    assert found.overlap == pytest.approx((alone - 0.5) / (alone - together))
    assert fit(traces(0.25, alone), protected=True).overlap == pytest.approx(0, abs=1e-12)
    assert fit(traces(0.25, together), protected=True).overlap == pytest.approx(1)
    matched = design.matched_arm(found.survival, found.overlap, 16)
    assert registry.build(matched["name"], matched["params"]).params()["r"] == 16


def test_traces_without_an_eviction_are_no_challenge() -> None:
    with pytest.raises(UserError, match=r"nothing to challenge\. Choose a smaller --keep"):
        fit(traces(0.5, 0.5).assign(events=0), protected=True)


def test_both_jobs_are_valid_and_share_their_cells(mine: Challenger, tmp_path: Path) -> None:
    arms: list[Any] = ["full", "random", mine.arm(), design.matched_arm([1, 0.5], 0.2, 16), design.permuted_arm(mine)]
    name = design.job_name(mine, WHERE)
    assert name == "challenge-mine.py-Mine-reasoner-reasoner_w-K264"
    assert len(design.tuning_name("x" * 64)) == 64
    jobs = []
    for limit, part in ((WHERE.tuning, arms[:3]), (WHERE.limit, arms)):
        (tmp_path / "job.yaml").write_text(design.job_text(name, WHERE, part, limit))
        jobs.append(JobSpec.load(tmp_path / "job.yaml"))
    assert [task.limit for job in jobs for task in job.tasks] == [8, 24]
    assert [arm.policy for arm in jobs[0].arms.policies] == [arm.policy for arm in jobs[1].arms.policies[:3]]
    assert jobs[1].arms.policies[2].policy.params() == {"order": 1.0}
    null = jobs[1].arms.policies[4].policy
    (tmp_path / "mine.py").write_text(SOURCE + "\n# another content\n")
    again = design.permuted_arm(mine)
    assert again["params"]["source"] != null.params()["source"]


def test_what_is_left_open_is_filled_in_or_asked_for() -> None:
    own = design.setting("embedded:reasoner", None, None, None, (9, 60))
    assert (own.task, own.keep, own.interval, own.tuning, own.problems) == ("reasoner_w", 264, 16, 16, 64)
    real = design.setting("Qwen/Qwen3-4B", "math500", None, None)
    assert (real.keep, real.interval, real.samples, real.sampling) == (1024, 64, None, None)
    assert "samples" not in yaml.safe_load(design.job_text("x", real, ["full"], 8))
    with pytest.raises(UserError, match="--task is needed for model Qwen/Qwen3-4B"):
        design.setting("Qwen/Qwen3-4B", None, None, None)
    with pytest.raises(UserError, match="--keep is needed"):
        design.setting("Qwen/Qwen3-4B", "gsm8k", None, None)


# 8 tuning problems, on which the challenger shines, then 16 test problems.
ARMS = {
    verdict.FULL: Arm("full", "1" * 24),
    verdict.RANDOM: Arm("random", "0" * 8 + "1" * 6 + "0" * 10),
    verdict.CHALLENGER: Arm("mine.py:Mine", "1" * 8 + "1" * 16),
    verdict.MATCHED: Arm("matched_age", "0" * 8 + "1" * 15 + "0"),
    verdict.PERMUTED: Arm("permuted_scores", "0" * 8 + "1" * 8 + "0" * 8),
}
FITTED = Fit((1.0, 0.5), 0.25, 0.5, 0.75, 8)
TAX = Tax([2e-3, 2.2e-3, 1.9e-3], [1e-3, 1e-3, 1e-3], 4096, 300)


def judged(tmp_path: Path, arms: dict[str, Arm]) -> Verdict:
    build_store(tmp_path / "s", list(arms.values()))
    reader, cells = Reader(tmp_path / "s"), {name: arm.cell.cell_id for name, arm in arms.items()}
    tuning, test = verdict.splits(reader, cells[verdict.CHALLENGER], 8)
    assert (len(tuning), len(test)) == (8, 16)
    found = [verdict.outcomes(reader, cells, problems) for problems in (tuning, test)]
    return Verdict(Challenger("/x/mine.py:Mine"), WHERE, found[0], found[1], FITTED, TAX, None, "Probes: left out.")


def test_the_verdict_comes_from_the_test_split_and_names_what_the_nulls_leave_open(tmp_path: Path) -> None:
    found = judged(tmp_path, ARMS)
    main = found.test[0]
    assert (main.arm, main.against, main.accuracy, main.other) == ("challenger", "random", 1.0, 6 / 16)
    assert (main.result.n_problems, main.result.wins, main.result.losses) == (16, 10, 0)
    said = list(page.lines(found))
    assert said[0] == "BETTER than protected random at the same keep."
    assert said[1] == "It is not shown to beat matched ages: the ages it keeps may be the whole reason."
    assert said[2].startswith("It also beats permuted scores")
    text = page.as_markdown(found)
    assert "| challenger | random | 100.0 | 37.5 | +62.5 |" in text
    assert "2.03 times random's" in text
    assert "random could keep 300" in text


def test_an_unresolved_verdict_says_what_it_would_take(tmp_path: Path) -> None:
    close = replace(ARMS[verdict.CHALLENGER], outcomes="1" * 8 + "1" * 8 + "0" * 8)
    found = judged(tmp_path, {**ARMS, verdict.CHALLENGER: close})
    said = " ".join(page.lines(found))
    assert said.startswith("UNRESOLVED (too few: 2 problems differ, 6 needed)")
    needed = found.test[0].result.problems_needed
    assert f"would be settled by {needed} problems" in said
    worse = replace(close, outcomes="0" * 24)
    assert next(page.lines(judged(tmp_path / "w", {**ARMS, verdict.CHALLENGER: worse}))).startswith("WORSE")


# By policy name: right answers of the 8 tuning and 16 test problems.
ANSWERS = {"full": "1" * 24, "random": "0" * 24, "matched_age": "0" * 8 + "1" * 15 + "0", "permuted_scores": "0" * 24}


def answered(job: Path, console: Console, connect: Any, store: Path, options: campaign.Options) -> int:
    """Instead of campaign.run: the real plan, recorded in the store, with rows that were written by hand."""
    prepared = campaign.prepare(job, store)
    campaign.submit(prepared)
    for planned in prepared.plan.cells:
        word = ANSWERS.get(planned.cell.policy.name, "1" * 24)[: planned.n_problems]
        for block in range(len(word) // 8):
            commit_block(prepared.store, planned.cell, ChunkId(planned.cell_id, 0, block), word)
    assert options.part
    return 0


def traced(cell: Cell, index: int) -> EvictionTrace | None:
    """stores._trace with ages as 16 heads have them."""
    trace = _trace(cell, index)
    histogram = tuple(int(16 * held) for held in ages(40 + index, 1039 + 2 * index, 0.2))
    return trace and replace(trace, age_histogram=histogram)


def test_a_fight_from_a_score_file_to_the_page(
    mine: Challenger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "run", answered)
    monkeypatch.setattr("orchestrator.store.tests.stores._trace", traced)
    console, store = Console(file=StringIO()), tmp_path / "s"
    found = [session.fight(mine, WHERE, store, Mock(), console, probes=False) for _ in range(2)]
    assert [each.test[0].result.n_problems for each in found] == [16, 16]
    campaigns = {c.campaign_id: c.plan().num_rows for c in Reader(store).campaigns()}
    assert campaigns == {f"{design.job_name(mine, WHERE)}-tuning": 3, design.job_name(mine, WHERE): 5}
    assert found[0].fit == found[1].fit, "the same store gives the same nulls"
    assert (found[0].where.samples, len(found[0].tax.random)) == (1, 10)
    text = page.as_markdown(found[0])
    assert "BETTER than protected random at the same keep." in text
    assert "It is not shown to beat matched ages" in text
    assert "It also beats permuted scores" in text
    assert "16 test problems × 1, 8 tuning problems apart" in text


def test_bytes_that_needs_hold_beside_the_cache() -> None:
    assert session.extra_bytes(Needs(), 4, 4, 32, 280) == 0
    assert session.extra_bytes(Needs(recent_queries=64), 4, 4, 32, 280) == 64 * 16 * 4 * 32 * 2
    assert session.extra_bytes(Needs(attention="step", slot_state=2), 4, 4, 32, 280) == 3 * 4 * 16 * 280


def test_mistakes_are_named_before_anything_runs(mine: Challenger, tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store")]
    cases = {
        ("gone.py:Mine",): "there is no file",
        (mine.policy, "--param", "ordr=1"): "Did you mean 'order'",
        (mine.policy, "--param", "order"): "write NAME=VALUE",
        ("full",): "gives no scores",
        (mine.policy, "--task", "reasner_w"): "reasoner_w",
    }
    for arguments, said in cases.items():
        failed = CliRunner().invoke(command, [*arguments, *store])
        assert isinstance(failed.exception, UserError), arguments
        assert said in str(failed.exception)
    assert not (tmp_path / "store").exists()
