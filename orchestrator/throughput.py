"""Measuring speed under stated conditions: random prompts, a fixed length, arms in turn, rounds that cancel drift.

Apart from accuracy runs by design (contracts.md section 4): here every request has the same length and ends where it is
told to, prompts repeat nowhere, and each arm runs once a round on an engine that was started for it.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from orchestrator.backend import ENGINES
from orchestrator.cells import Cell, canonical_json
from orchestrator.errors import UserError
from orchestrator.grid import Plan, PlannedCell, eviction_of
from orchestrator.store import files
from orchestrator.store.paths import StorePaths
from orchestrator.store.throughput import THROUGHPUT
from policies import registry
from workers.api import Engine, EngineSpec, Generation, Provenance, Request, Sampling
from workers.vllm_engine.physical import reserved_tokens


@dataclass(frozen=True, slots=True)
class Setup:
    """Conditions: prompt and output tokens of every request, requests at once, counted rounds, rounds before them.

    vocabulary  token ids to draw prompts from: those of the job's own prompts, so that none is a control token
    """

    prompt: int
    output: int
    requests: int
    rounds: int
    warm_up: int = 1
    vocabulary: tuple[int, ...] = ()


def vocabulary(plan: Plan) -> tuple[int, ...]:
    """Token ids of all prompts of a plan."""
    return tuple(sorted({t for prompts in plan.prompts.values() for r in prompts.rendered for t in r.token_ids}))


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm in one round; seconds from the first submission to the last token."""

    tokens: int
    seconds: float
    generations: tuple[Generation, ...]
    provenance: Provenance


def arms(plan: Plan, setup: Setup) -> dict[EngineSpec, tuple[PlannedCell, ...]]:
    """Cells to measure by the engine that runs them: one per model and arm, those of the job's first task.

    All engines of a model get the same pool, the job's `pool_blocks` or one that holds every request whole: memory is a
    condition, and arms are only compared under equal ones. Raises UserError where prompt and output do not fit.
    """
    first: dict[Any, PlannedCell] = {}
    for planned in plan.cells:
        cell = planned.cell
        first.setdefault((cell.model, cell.policy.name, str(cell.policy.params), cell.budget, cell.protection), planned)
    found: dict[EngineSpec, tuple[PlannedCell, ...]] = {}
    for planned in first.values():
        window = planned.cell.model.max_model_len
        if setup.prompt + setup.output > window:
            raise UserError(
                f"--prompt {setup.prompt} plus --output {setup.output} is longer than max_model_len {window} of "
                f"{planned.cell.model.path}. Shorten one of them, or raise max_model_len in the job."
            )
        spec = replace(planned.engine, max_prompt_tokens=setup.prompt, max_num_seqs=setup.requests)
        found[spec] = (*found.get(spec, ()), planned)
    pools = {model: max(_blocks(spec, setup) for spec in found if spec.model == model) for model in _models(found)}
    return {replace(spec, pool_blocks=spec.pool_blocks or pools[spec.model]): cells for spec, cells in found.items()}


def _models(specs: Iterable[EngineSpec]) -> set[str]:
    return {spec.model for spec in specs}


def _blocks(spec: EngineSpec, setup: Setup) -> int:
    """Blocks that all requests of an engine may come to hold, with vLLM's null block."""
    whole = setup.prompt + setup.output
    most = max(whole, reserved_tokens(spec.keep_ceiling, spec.interval, setup.prompt)) if spec.keep_ceiling else whole
    return setup.requests * -(-most // spec.block_size) + 1


def requests(planned: PlannedCell, setup: Setup, round_: int) -> tuple[Request, ...]:
    """Random prompts, equal for all arms of a round and new in every round, so that no prefix cache can help."""
    made = []
    for index in range(setup.requests):
        draws = np.random.Generator(np.random.Philox(key=[round_ + setup.warm_up, index]))
        prompt = tuple(draws.choice(setup.vocabulary, setup.prompt).tolist())
        name = f"{planned.cell_id}/{round_}/{index}"
        sampling = Sampling(0.0, setup.output, ignore_eos=True)
        made.append(Request(name, prompt, sampling, eviction_of(planned, index)))
    return tuple(made)


def run_engine(spec: EngineSpec, batches: Sequence[tuple[Request, ...]], create: str = ENGINES) -> list[Measured]:
    """Start an engine and run each batch alone on it; for a process of its own."""
    module, _, name = create.partition(":")
    engine: Engine = getattr(importlib.import_module(module), name)(spec)
    try:
        provenance = engine.start()
        return [_run(engine, batch, provenance) for batch in batches]
    finally:
        engine.close()


def _run(engine: Engine, batch: tuple[Request, ...], provenance: Provenance) -> Measured:
    done: list[Generation] = []
    # arms of one engine have the same prompts: none may find those of the arm before it
    engine.forget_prompts()
    began = time.perf_counter()
    engine.submit(batch)
    while len(done) < len(batch):
        done += engine.step()
    seconds = time.perf_counter() - began
    return Measured(sum(generation.n_output for generation in done), seconds, tuple(done), provenance)


def measure(
    groups: Mapping[EngineSpec, Sequence[PlannedCell]],
    setup: Setup,
    show: Callable[[str], None],
    create: str = ENGINES,
) -> Iterator[tuple[PlannedCell, dict[str, Any]]]:
    """Rows of THROUGHPUT, arm by arm and round by round: warm-up rounds have numbers below 0.

    Engines and the arms of one engine take turns at being first. Raises UserError when an engine cannot run an arm.
    """
    session = uuid.uuid4().hex[:12]
    for round_ in range(-setup.warm_up, setup.rounds):
        order = 0
        for spec, cells in _turned(list(groups.items()), round_):
            turned = _turned(list(cells), round_)
            for planned, found in zip(turned, _apart(spec, turned, setup, round_, create), strict=True):
                label = f"{planned.cell.model.path} {planned.cell.arm_label}"
                show(f"{_named(round_)}: {label}: {found.tokens / found.seconds:,.0f} tokens/s")
                yield planned, _row(planned, spec, setup, found, (session, round_, order))
                order += 1


def _named(round_: int) -> str:
    return f"round {round_ + 1}" if round_ >= 0 else "warm-up"


def _turned(items: list[Any], round_: int) -> list[Any]:
    return items if round_ % 2 == 0 else items[::-1]


def _apart(spec: EngineSpec, cells: Sequence[PlannedCell], setup: Setup, round_: int, create: str) -> list[Measured]:
    """The engine in a process of its own, so that nothing of one engine's memory or caches is left for the next."""
    batches = [requests(planned, setup, round_) for planned in cells]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(run_engine, spec, batches, create).result()
        except Exception as error:
            names = ", ".join(planned.cell.arm_label for planned in cells)
            raise UserError(
                f"the engine of {names} failed: {error}. Rows of finished rounds are in the store."
            ) from error


def _row(
    planned: PlannedCell, spec: EngineSpec, setup: Setup, found: Measured, place: tuple[str, int, int]
) -> dict[str, Any]:
    cell, done, provenance = planned.cell, found.generations, found.provenance
    ttft = np.array([generation.ttft_seconds for generation in done])
    peaks = [generation.trace.cached_peak for generation in done if generation.trace is not None]
    blocks = provenance.extra.get("pool_blocks")
    per_token = provenance.extra.get("bytes_per_token")
    peak = max(peaks) if peaks else setup.prompt + setup.output - 1
    tables = _tables(planned, provenance)
    shared = tables.pop("calibration", None)
    session, round_, order = place
    return {
        **_identity(cell, planned.cell_id),
        "session": session,
        "round": round_,
        "order": order,
        "warm_up": round_ < 0,
        "tokens": float(found.tokens),
        "seconds": found.seconds,
        "decode_tokens_per_second": float(np.mean([generation.decode_tokens_per_second for generation in done])),
        "ttft_p50_seconds": float(np.quantile(ttft, 0.5)),
        "ttft_p99_seconds": float(np.quantile(ttft, 0.99)),
        "peak_cached_tokens": peak,
        "request_bytes": float(peak * per_token + sum(tables.values())) if per_token else None,
        "shared_bytes": shared,
        "prefix_cache_hit_rate": sum(g.n_cached_prompt for g in done) / (setup.prompt * len(done)),
        "preemptions": sum(generation.preemptions for generation in done),
        "gpu": provenance.device,
        "tp": spec.tp,
        "concurrency": setup.requests,
        "pool_bytes": float(blocks * spec.block_size * per_token) if blocks and per_token else None,
        "prompt_tokens": setup.prompt,
        "output_tokens": setup.output,
        "graph_mode": provenance.graph_mode,
        "versions": json.dumps(dict(sorted(provenance.versions.items()))),
    }


def _tables(planned: PlannedCell, provenance: Provenance) -> dict[str, float]:
    """Bytes of what the engine keeps for this arm beside the cache; an engine may record for other arms as well."""
    policy = planned.cell.policy
    needs = asdict(registry.build(planned.arm.reference, policy.params).needs)
    tables: Mapping[str, int] = provenance.extra.get("table_bytes", {})
    return {name: float(size) for name, size in tables.items() if name == "positions" or needs.get(name)}


def _identity(cell: Cell, cell_id: str) -> dict[str, Any]:
    budget = cell.budget
    return {
        "cell_id": cell_id,
        "cell_label": cell.label,
        "model": cell.model.path,
        "policy": cell.policy.name,
        "policy_params": canonical_json(dict(cell.policy.params)),
        "keep": budget.keep if budget else None,
        "interval": budget.interval if budget else None,
        "protection": cell.protection.value if cell.protection else None,
    }


def commit(paths: StorePaths, row: Mapping[str, Any]) -> None:
    """Put one measurement into the store. Raises OSError."""
    name = f"{row['session']}-{'w' if row['warm_up'] else 'r'}{abs(int(row['round'])):03d}"
    table = pa.Table.from_pylist([dict(row)], schema=THROUGHPUT)
    target = paths.root / "throughput" / str(row["cell_id"]) / f"{name}.parquet"
    files.create_if_absent(target, files.table_writer(table), paths.temporary)
