"""A store with the real rows of a job, answered by a test instead of an engine: for tests and benches of grading."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from orchestrator import campaign
from orchestrator.store.rows import generation_row
from orchestrator.store.tests.stores import PROVENANCE
from orchestrator.tasks.base import Problem
from workers.api import Generation

Answer = Callable[[Problem, int], str]
JOB = """
name: answered
models: [{{path: "embedded:reasoner", max_model_len: 4096}}]
tasks: [{task}]
arms: {{policies: [full]}}
samples: {samples}
sampling: {{temperature: 0.6, max_tokens: 100}}
execution: {{store: {store}}}
"""


def write_job(folder: Path, task: str, samples: int = 1, more: str = "") -> Path:
    """A job file for one task (YAML) whose store is `folder`/store."""
    path = folder / "job.yaml"
    path.write_text(JOB.format(task=task, samples=samples, store=folder / "store") + more, encoding="utf-8")
    return path


def answer_all(job: Path, answer: Answer, finish_reason: str = "stop") -> campaign.Prepared:
    """Submit the job and commit every row; `answer` gives the text for a problem and a sample."""
    prepared = campaign.prepare(job)
    campaign.submit(prepared)
    now = datetime.now(UTC)
    for chunk in prepared.missing:
        work = prepared.plan.build(chunk, 0)
        cell = prepared.plan.cell(chunk.cell_id).cell
        problems = {p.problem_id: p for p in prepared.plan.prompts[cell.model, cell.task].problems}
        rows = []
        for row in work.rows:
            text = answer(problems[row.problem_id], chunk.sample)
            length = len(row.request.prompt_token_ids)
            made = Generation(
                row.request.request_id, text, (), length, 10, finish_reason, 0.0, 0.1, 1.0, 10.0, 0, 1, None
            )
            rows.append(generation_row(cell, work, row, made, PROVENANCE, now, now))
        prepared.store.commit_chunk(work, rows)
    return prepared
