"""Stores for tests, made by the real writer from hand-written verdicts. Shared by store, report and dashboard tests.

    store = build_store(path, [Arm("full", "111"), Arm("random", "110"), Arm("random", "100", protection="none")])

An arm's `outcomes` has one word per sample; letter i of a word is the outcome of problem i:
1 correct, 0 wrong, n no answer, t truncated, e grader error, u ungraded, X attestation failed (and correct).
Every other value is derived from the key by simple rules, written beside the code, so that means can be computed by
hand: problem i generates 1000 + i tokens from a prompt of 40 + i tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.cells import Cell, ModelRef, PolicyRef, SamplingRef, TaskRef
from orchestrator.chunks import BLOCK, ChunkId, Row, Work
from orchestrator.store.paths import GraderKey
from orchestrator.store.rows import generation_row, grade_row, plan_row
from orchestrator.store.writer import Store
from orchestrator.tasks.base import Grade, Verdict
from policies.budget import Budget, Overflow, Protection
from workers.api import AGE_BINS, Eviction, EvictionTrace, Generation, Provenance, Request, Sampling

GRADER = GraderKey("reasoner", 1)
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
VERDICTS = {
    "1": Verdict.CORRECT,
    "0": Verdict.WRONG,
    "n": Verdict.NO_ANSWER,
    "t": Verdict.TRUNCATED,
    "e": Verdict.ERROR,
    "X": Verdict.CORRECT,
}
PROVENANCE = Provenance(
    engine_id="engine-0",
    kind="vllm",
    versions={"evictbench": "0.1.0", "torch": "2.13.0", "vllm": "0.32.0"},
    runner="v1",
    graph_mode="eager",
    device="cpu",
    node="node-0",
    pid=1,
    extra={"git_revision": "abc1234"},
)


@dataclass(frozen=True, slots=True)
class Arm:
    """One cell with its outcomes: one word per sample, one letter per problem."""

    policy: str
    outcomes: str | Sequence[str]
    protection: str = "prompt"
    keep: int = 264
    interval: int = 16
    model: str = "embedded:reasoner"
    task: str = "reasoner_w"
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """Outcomes as one word per sample."""
        return (self.outcomes,) if isinstance(self.outcomes, str) else tuple(self.outcomes)

    @property
    def cell(self) -> Cell:
        """The cell of this arm; `full` has no budget."""
        evicts = self.policy != "full"
        return Cell(
            model=ModelRef(self.model, "sha-of-weights", "bfloat16", 2048),
            task=TaskRef(self.task, 1, "sha-of-data", "sha-of-prompt"),
            policy=PolicyRef(self.policy, 1, self.params),
            budget=Budget(self.keep, self.interval, self.interval) if evicts else None,
            protection=Protection(self.protection) if evicts else None,
            n_sink=4 if evicts else None,
            overflow=Overflow.GROW if evicts else None,
            sampling=SamplingRef(0.0, 1.0, 0, 0.0, 1500),
            protocol="ours",
            sample_base_seed=0,
            eviction_base_seed=0,
        )


def build_store(
    path: Path,
    arms: Sequence[Arm],
    *,
    campaign: str = "demo",
    planned: tuple[int, int] | None = None,
    provenance: Provenance = PROVENANCE,
) -> Store:
    """Commit every arm's chunks and grades, and a campaign that planned them.

    planned  (problems, samples) of every cell in the plan; by default what the outcomes hold, so that all is done
    """
    store = Store.open(path)
    plan = [(arm, planned or (len(arm.words[0]), len(arm.words))) for arm in arms]
    rows = [plan_row(arm.cell, problems, samples, samples, 1050.0) for arm, (problems, samples) in plan]
    store.campaign(campaign).submit("name: demo\n", {"name": campaign}, {"git_revision": "abc1234"}, rows)
    for arm in arms:
        for sample, word in enumerate(arm.words):
            for block in range(-(-len(word) // BLOCK)):
                commit_block(store, arm.cell, ChunkId(arm.cell.cell_id, sample, block), word, provenance)
    return store


def commit_block(store: Store, cell: Cell, chunk: ChunkId, word: str, provenance: Provenance = PROVENANCE) -> None:
    """Commit one chunk and its grades; `word` holds the outcomes of all problems of the sample."""
    work = make_work(cell, chunk, len(word))
    letters = word[chunk.block * BLOCK :][: len(work.rows)]
    rows = [make_row(cell, work, row, letter, provenance) for row, letter in zip(work.rows, letters, strict=True)]
    store.commit_chunk(work, rows)
    graded = [(row, VERDICTS[letter]) for row, letter in zip(rows, letters, strict=True) if letter != "u"]
    grades = [grade_row(row, GRADER, make_grade(verdict), START + timedelta(hours=1)) for row, verdict in graded]
    if grades:
        store.commit_grades(GRADER, chunk, grades)


def make_work(cell: Cell, chunk: ChunkId, n_problems: int) -> Work:
    """The chunk's requests, problems named p000, p001, ..."""
    first = chunk.block * BLOCK
    indices = range(first, min(first + BLOCK, n_problems))
    return Work(chunk, 0, tuple(_request(cell, chunk, index) for index in indices))


def make_row(
    cell: Cell, work: Work, row: Row, letter: str = "1", provenance: Provenance = PROVENANCE
) -> dict[str, Any]:
    """A generation row: problem i has prompt 40 + i and 1000 + i tokens of output (1500 where truncated)."""
    index = int(row.problem_id[1:])
    trace = _trace(cell, index)
    if letter == "X" and trace is not None:
        trace = replace(trace, events=trace.events - 1)
    generation = Generation(
        request_id=row.request.request_id,
        text=f"<think>{index}+1\n</think>\\boxed{{{index}}}",
        token_ids=(),
        n_prompt=40 + index,
        n_output=1500 if letter == "t" else 1000 + index,
        finish_reason="length" if letter == "t" else "stop",
        queue_seconds=0.25,
        ttft_seconds=0.5,
        e2e_seconds=10.5,
        decode_tokens_per_second=100.0 + index,
        preemptions=0,
        concurrency=8,
        trace=trace,
    )
    started = START + timedelta(seconds=index)
    return generation_row(cell, work, row, generation, provenance, started, started + timedelta(seconds=10.5))


def make_grade(verdict: Verdict) -> Grade:
    """A grade with nothing extracted unless an answer was."""
    extracted = "42" if verdict in (Verdict.CORRECT, Verdict.WRONG) else None
    return Grade(verdict, extracted, "boxed", 0.001)


def _request(cell: Cell, chunk: ChunkId, index: int) -> Row:
    # 2**64 - 1 - i: seeds use all 64 bits, and a reader that goes through floats would lose them.
    seed = 2**64 - 1 - index
    eviction = None
    if cell.budget is not None and cell.protection is not None and cell.overflow is not None:
        eviction = Eviction(
            cell.policy.name, cell.policy.params, cell.budget.keep, cell.budget.recent, cell.protection, 4, seed
        )
    request = Request(f"{chunk.cell_id}-{index}-{chunk.sample}", (1, 2, 3), Sampling(0.0, 1500, seed=seed), eviction)
    return Row(f"p{index:03d}", seed, f"sha-{index}", request)


def _trace(cell: Cell, index: int) -> EvictionTrace | None:
    if cell.budget is None:
        return None
    kept = 1.0 if cell.protection is Protection.PROMPT else 0.1
    return EvictionTrace(
        events=40 + index,
        expected_events=40 + index,
        prompt_kept_min=kept / 2,
        prompt_kept_mean=kept,
        cached_peak=cell.budget.keep + cell.budget.interval,
        cached_mean=float(cell.budget.keep),
        overflow=False,
        age_histogram=tuple(range(AGE_BINS)),
        union_alive=600,
        kept_crc=2**64 - 1 - index,
    )
