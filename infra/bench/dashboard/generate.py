"""`python infra/bench/dashboard/generate.py OUT --rows 1000000`: a store of invented rows, for measuring speed only.

The grid has the shape of the published one: four models, five tasks, eighteen arms, one plan, one file per chunk of
eight rows as the real writer leaves them. The numbers are draws from a keyed generator; the rows carry the device name
SYNTHETIC, so that nobody takes them for results.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.cells import Cell, ModelRef, PolicyRef, SamplingRef, TaskRef, canonical_json
from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.errors import UserError
from orchestrator.store import compact, listing
from orchestrator.store.index import Change, Index
from orchestrator.store.listing import Folder
from orchestrator.store.paths import GraderKey
from orchestrator.store.rows import comparison_id, plan_row
from orchestrator.store.schema import GENERATIONS, GRADES
from orchestrator.store.writer import Store
from policies.budget import Budget, Overflow, Protection
from workers.api import AGE_BINS

DEVICE = "SYNTHETIC"
GRADER = GraderKey("synthetic", 1)
MODELS = ("qwen3-4b", "qwen3-14b", "phi-4-mini", "gpt-oss-20b")
# Problems and samples of each task at full size: 14,080 rows an arm, 1,013,760 in all.
TASKS = {"math500": (500, 8), "gpqa": (198, 16), "livecodebench": (384, 8), "aime": (60, 32), "hmmt": (60, 32)}
PROTECTED = ("random", "random_inplace", "recent", "h2o", "snapkv", "rkv", "vase", "triattention")
UNPROTECTED = ("random", "random_inplace", "recent", "h2o", "snapkv", "rkv", "vase", "triattention")
FULL_ROWS = 1_013_760
START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
KEEP, INTERVAL = 2048, 64
# A quarter of a million small files: what only makes them slower to write is left out.
_FAST = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "store_schema": False}


@dataclass(frozen=True, slots=True)
class Arm:
    """One cell and how it is drawn: `skill` is added to the log odds of every problem."""

    cell: Cell
    problems: int
    samples: int
    skill: float


def arms(samples_share: float) -> Iterator[Arm]:
    """Every cell of the grid; samples_share scales the samples, at least one stays."""
    places = [("full", None), *((name, Protection.PROMPT) for name in PROTECTED)]
    places += [("streaming_llm", Protection.SINKS), *((name, Protection.NONE) for name in UNPROTECTED)]
    for model in MODELS:
        for task, (problems, samples) in TASKS.items():
            for place, (policy, protection) in enumerate(places):
                skill = 0.6 if policy == "full" else -0.1 * place - (2.0 if protection is Protection.NONE else 0.0)
                yield Arm(
                    cell(model, task, policy, protection), problems, max(1, round(samples * samples_share)), skill
                )


def cell(model: str, task: str, policy: str, protection: Protection | None) -> Cell:
    """One cell's identity; `full` has no protection and no budget."""
    evicts = protection is not None
    return Cell(
        model=ModelRef(model, "synthetic", "bfloat16", 40_960),
        task=TaskRef(task, 1, "synthetic", "synthetic"),
        policy=PolicyRef(policy, 1, {}),
        budget=Budget(KEEP, INTERVAL, INTERVAL) if evicts else None,
        protection=protection,
        n_sink=4 if evicts else None,
        overflow=Overflow.GROW if evicts else None,
        sampling=SamplingRef(0.6, 0.95, 20, 0.0, 32_768),
        protocol="ours",
        sample_base_seed=0,
        eviction_base_seed=0,
    )


def columns(arm: Arm, text_bytes: int) -> dict[str, pa.Array]:
    """Values that vary within a cell, as arrays [problems * samples], sample-major as chunks are."""
    cell = arm.cell
    n = arm.problems * arm.samples
    draw = np.random.Generator(np.random.Philox(key=int(cell.cell_id, 16)))
    shared = np.random.Generator(
        np.random.Philox(key=sum(cell.task.name.encode()) * 1000 + sum(cell.model.path.encode()))
    )
    ease = np.tile(shared.normal(0.8, 2.0, arm.problems), arm.samples)
    index = np.tile(np.arange(arm.problems), arm.samples)
    sample = np.repeat(np.arange(arm.samples), arm.problems)
    prompt = np.tile(shared.integers(90, 900, arm.problems), arm.samples)
    output = np.minimum(32_768, np.exp(9.0 - 0.25 * ease + draw.normal(0, 0.5, n))).astype(np.int64)
    right = draw.random(n) < 1 / (1 + np.exp(-(ease + arm.skill)))
    cut = output == 32_768
    verdict = np.where(
        cut, "truncated", np.where(right, "correct", np.where(draw.random(n) < 0.1, "no_answer", "wrong"))
    )
    problem = [f"{cell.task.name}-{i:04d}" for i in index]
    values = {
        "row_id": [f"{cell.cell_id}/{name}/{s}" for name, s in zip(problem, sample, strict=True)],
        "problem_id": problem,
        "problem_index": index,
        "sample": sample,
        "sample_seed": shared.integers(0, 2**63, n).astype(np.uint64),
        "finish_reason": np.where(cut, "length", "stop"),
        "n_prompt": prompt,
        "n_output": output,
        "n_reasoning": (output * 0.9).astype(np.int64),
        "text": ["x" * text_bytes] * n,
        "prompt_sha256": [f"{i:064x}" for i in index],
        "ttft_seconds": draw.gamma(2.0, 0.4, n),
        "e2e_seconds": output / 55.0,
        "queue_seconds": draw.gamma(1.0, 0.2, n),
        "decode_tokens_per_second": draw.normal(55, 6, n),
        "started_at": ((START + np.arange(n) * 3.0) * 1e6).astype(np.int64),
        "finished_at": ((START + np.arange(n) * 3.0 + 600) * 1e6).astype(np.int64),
        "verdict": verdict,
        **(_eviction(arm, prompt, output, draw) if cell.budget else {}),
    }
    return {name: pa.array(value) for name, value in values.items()}


def _eviction(arm: Arm, prompt: np.ndarray, output: np.ndarray, draw: np.random.Generator) -> dict[str, object]:
    n = len(output)
    events = np.maximum(0, (prompt + output - 2 - KEEP - INTERVAL) // INTERVAL + 1)
    length = prompt + output - 1
    edges = np.concatenate(([0], 2 ** np.arange(AGE_BINS, dtype=np.int64)))
    tokens = np.diff(np.minimum(length[:, None], edges[None, :]), axis=1)
    share = np.minimum(1.0, 2.0 ** (8 - np.arange(AGE_BINS) * 0.7))
    kept = 1.0 if arm.cell.protection is Protection.PROMPT else 0.15
    return {
        "eviction_seed": draw.integers(0, 2**63, n).astype(np.uint64),
        "events": events,
        "expected_events": events,
        "prompt_kept_min": np.full(n, kept / 2),
        "prompt_kept_mean": np.full(n, kept),
        "cached_peak": np.minimum(length, KEEP + INTERVAL),
        "cached_mean": np.minimum(length, KEEP).astype(float),
        "overflow": np.zeros(n, bool),
        "age_histogram": list((tokens * share * 288).astype(np.int64)),
        "union_alive": np.minimum(length, 3 * KEEP),
        "kept_crc": draw.integers(0, 2**63, n).astype(np.uint64),
    }


def constants(arm: Arm) -> dict[str, object]:
    """Values that are the same in all rows of a cell, columns of GENERATIONS."""
    cell = arm.cell
    budget = cell.budget
    return {
        "cell_id": cell.cell_id,
        "cell_label": cell.label,
        "comparison_id": comparison_id(cell),
        "model": cell.model.path,
        "model_revision": cell.model.revision,
        "task": cell.task.name,
        "task_revision": cell.task.revision,
        "policy": cell.policy.name,
        "policy_version": cell.policy.version,
        "policy_params": canonical_json(dict(cell.policy.params)),
        "keep": budget.keep if budget else None,
        "interval": budget.interval if budget else None,
        "recent": budget.recent if budget else None,
        "protection": cell.protection.value if cell.protection else None,
        "n_sink": cell.n_sink,
        "overflow_mode": cell.overflow.value if cell.overflow else None,
        "temperature": cell.sampling.temperature,
        "max_tokens": cell.sampling.max_tokens,
        "attempt": 0,
        "status": "ok",
        "num_preemptions": 0,
        "concurrency": 64,
        "engine_id": f"engine-{int(cell.cell_id, 16) % 8}",
        "engine_kind": "vllm",
        "gpu": DEVICE,
        "node": f"node-{int(cell.cell_id, 16) % 2}",
        "runner": "v1",
        "graph_mode": "full",
        "versions": canonical_json({"evictbench": "0.1.0", "vllm": "0.32.0"}),
        "git_revision": "synthetic",
        "grader": GRADER.grader,
        "judge": GRADER.judge,
        "grader_version": GRADER.version,
        "extracted": "42",
        "grade_method": "boxed",
        "grade_seconds": 0.001,
        "graded_at": int(START * 1e6) + 3_600_000_000,
    }


def table(schema: pa.Schema, varying: dict[str, pa.Array], constant: dict[str, object], n: int) -> pa.Table:
    """A table of exactly this schema; what neither mapping names is null."""

    def column(field: pa.Field) -> pa.Array:
        if field.name in varying:
            return varying[field.name].cast(field.type)
        return pa.repeat(pa.scalar(constant.get(field.name), field.type), n)

    return pa.table([column(field) for field in schema], schema=schema)


def write(store: Store, arm: Arm, text_bytes: int) -> int:
    """Write all chunks and grades of an arm, without the writer's fsync; returns the rows."""
    n = arm.problems * arm.samples
    varying, constant = columns(arm, text_bytes), constants(arm)
    tables = ((table(GENERATIONS, varying, constant, n), store.paths.generation),
              (table(GRADES, varying, constant, n), lambda chunk: store.paths.grade(GRADER, chunk)))  # fmt: skip
    for rows, place in tables:
        place(ChunkId(arm.cell.cell_id, 0, 0)).parent.mkdir(parents=True, exist_ok=True)
        for sample in range(arm.samples):
            for block in range(-(-arm.problems // BLOCK)):
                first = sample * arm.problems + block * BLOCK
                part = rows.slice(first, min(BLOCK, arm.problems - block * BLOCK))
                write_file(part, place(ChunkId(arm.cell.cell_id, sample, block)))
    return n


def take_in(index: Index, folders: Collection[Folder], arm: Arm) -> None:
    """Put an arm into the index as the reader would, from a few files instead of its thousand chunks."""
    varying, constant = columns(arm, 0), constants(arm)
    n = arm.problems * arm.samples
    generations, grades = (table(schema, varying, constant, n) for schema in (GENERATIONS, GRADES))
    block = varying["problem_index"].to_numpy() // BLOCK
    with tempfile.TemporaryDirectory() as name:
        rows = Path(name) / "rows.parquet"
        pq.write_table(generations, rows)
        graded = [Path(name) / f"b{number}.parquet" for number in range(int(block.max()) + 1)]
        for number, path in enumerate(graded):
            pq.write_table(grades.filter(pa.array(block == number)), path)
        mine = [folder for folder in folders if folder.cell_id == arm.cell.cell_id]
        index.apply([Change(folder, graded if folder.grader else [rows]) for folder in mine])


def write_file(rows: pa.Table, path: Path) -> None:
    """One chunk file without Arrow's copy of the schema, which is two thirds of its bytes."""
    with pq.ParquetWriter(path, rows.schema, **_FAST) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({key.decode(): text.decode() for key, text in rows.schema.metadata.items()})


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--rows", default=FULL_ROWS, show_default=True, help="About so many generations; scales the samples.")
@click.option("--compacted/--chunks-only", default=True, show_default=True, help="Write the compacted copy too.")
@click.option("--text-bytes", default=400, show_default=True, help="Bytes of each text; 40000 is a long trace.")
def main(out: Path, rows: int, compacted: bool, text_bytes: int) -> None:
    """Make a store of invented rows at OUT."""
    started = time.monotonic()
    try:
        store = Store.open(out)
    except UserError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    grid = list(arms(rows / FULL_ROWS))
    plan = [plan_row(arm.cell, arm.problems, arm.samples, arm.samples, 8000.0) for arm in grid]
    store.campaign("synthetic").submit("name: synthetic\n", {"name": "synthetic"}, {}, plan)
    made = sum(write(store, arm, text_bytes) for arm in grid)
    if compacted:
        index, folders = Index(), listing.folders(store.paths)
        for arm in grid:
            take_in(index, folders, arm)
        compact.write(store.paths, index, folders)
    click.echo(f"{out}: {made:,} rows in {len(grid)} cells, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
