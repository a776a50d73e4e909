"""The V2 adapter without a GPU: kernels and tensors under Triton's interpreter, vLLM's V2 runner against V1, refusals.

The interpreter changes triton for a whole process, so what launches kernels runs in one of its own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.models import ModelRegistry
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from policies.base import Needs
from policies.budget import Protection
from workers.api import EngineSpec, Generation, Provenance, Request
from workers.transformers_engine.calibrate import calibrate
from workers.vllm_engine import cuda_backend, engine_args
from workers.vllm_engine.binding import planned_table_bytes
from workers.vllm_engine.cuda_state import EvictingModelState, evicting, evicting_model
from workers.vllm_engine.records import Records, RecordShape
from workers.vllm_engine.refusals import refuse_config
from workers.vllm_engine.scheduler import EvictingAsyncScheduler, EvictingScheduler
from workers.vllm_engine.settings import EngineSettings, SettingsError
from workers.vllm_engine.state import Requests
from workers.vllm_engine.tests.cases import (
    FIRST,
    SECOND,
    SPEC,
    Arm,
    eviction,
    needs_of,
    random_llama,
    request,
    run,
    start,
)
from workers.vllm_engine.tests.interpreted import Job
from workers.vllm_engine.tests.test_refusals import config

ROOT = Path(__file__).parents[3]
LAUNCHED = Path(__file__).parent / "launched"
KEEP, INTERVAL = 24, 4


def interpreting(**more: str) -> dict[str, str]:
    """Environment of a process that interprets kernels."""
    return {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


@pytest.mark.timeout(900)
def test_kernels_and_persistent_tensors_equal_the_core_in_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(LAUNCHED)],
        cwd=ROOT, env=interpreting(), text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


ARMS = {
    "random": Arm("random"),
    "random_inplace": Arm("random_inplace"),
    "recent": Arm("recent"),
    "snapkv": Arm("snapkv", {"window": 4}),
    "rkv": Arm("rkv", {"window": 4}),
    "vase": Arm("vase", {"window": 4, "n_large": 0}),
    "triattention": Arm("triattention"),
    "h2o": Arm("h2o"),
}


def both(
    spec: EngineSpec, batches: Sequence[Sequence[Request]], folder: Path, plain: bool
) -> tuple[list[Any], list[Any], Provenance]:
    """The batches in the V1 engine of this process, and in V2 in another, and what that one says of itself."""
    (folder / "job").write_bytes(pickle.dumps(Job(spec, batches, plain)))
    command = [sys.executable, "-m", "workers.vllm_engine.tests.interpreted", str(folder / "job"), str(folder / "out")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=interpreting(), stdout=log, stderr=subprocess.STDOUT)
    try:
        engine = start(spec)
        made = [run(engine, requests) for requests in batches]
        engine.close()
        assert process.wait() == 0, (folder / "log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
    return made, *pickle.loads((folder / "out").read_bytes())


def small(model: str, needs: tuple[tuple[str, Any], ...] = ()) -> EngineSpec:
    return replace(
        SPEC, model=model, max_model_len=128, max_prompt_tokens=20, keep_ceiling=32, interval=INTERVAL, max_num_seqs=16,
        needs=needs,
    )  # fmt: skip


def requests_of(arms: dict[str, Arm], tokens: int) -> list[Request]:
    """Every arm with and without a protected prompt."""
    cases = ((FIRST[:15], Protection.PROMPT), (SECOND[:11], Protection.NONE))
    return [
        request(
            f"{name}-{index}", prompt,
            eviction(arm.policy, protection, keep=KEEP, recent=INTERVAL, params=arm.params, seed=index),
            max_tokens=tokens,
        )
        for name, arm in arms.items()
        for index, (prompt, protection) in enumerate(cases)
    ]  # fmt: skip


def assert_same(ours: dict[str, Generation], theirs: dict[str, Generation]) -> None:
    """Tokens and the whole trace: events, kept_crc, ages, shares."""
    assert {name: made.token_ids for name, made in ours.items()} == {
        name: made.token_ids for name, made in theirs.items()
    }
    assert {name: made.trace for name, made in ours.items()} == {name: made.trace for name, made in theirs.items()}


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(3600)
def test_the_v2_runner_equals_the_v1_runner(tmp_path: Path) -> None:
    """All arms in one batch, then one with events, one in place and one with scores alone."""
    from policies.calibration import ModelFacts  # noqa: PLC0415 - beside its only use

    model = random_llama(tmp_path / "model", 4, 2, 32)
    file = tmp_path / "statistics.safetensors"
    calibrate(Path(model), ModelFacts.read(Path(model), ""), [FIRST, SECOND], "blake2b:prompts").save(file)
    requests = requests_of(ARMS, tokens=28)
    spec = replace(small(model, needs_of(ARMS.values())), calibration=str(file))
    made, found, provenance = both(spec, [requests, *([requests[index]] for index in (0, 2, 6))], tmp_path, plain=True)
    assert provenance.runner == "v2-cpu"
    assert provenance.extra["state"] == "EvictingDefaultModelState"
    for ours, theirs in zip(made, found, strict=True):
        assert_same(ours, theirs)
    assert min(one.trace.events for one in made[0].values()) >= 3
    for alone in found[1:]:
        assert_same(alone, {name: found[0][name] for name in alone})


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(3600)
def test_vllms_triton_attention_over_physical_lengths(tmp_path: Path) -> None:
    """TRITON_ATTN itself, interpreted, and not sums in torch in its place."""
    arms = {name: ARMS[name] for name in ("random", "random_inplace")}
    requests = requests_of(arms, tokens=24)
    made, found, _ = both(small(random_llama(tmp_path / "model", 2, 1, 32)), [requests], tmp_path, plain=False)
    assert_same(made[0], found[0])
    assert min(one.trace.events for one in made[0].values()) >= 2


def test_cuda_chooses_v2_and_the_cpu_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_args.adapter() is engine_args.CPU
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert engine_args.adapter() is engine_args.CPU_V2
    monkeypatch.setattr(engine_args, "current_platform", SimpleNamespace(is_cuda=lambda: True))
    assert engine_args.adapter() is engine_args.CUDA
    arguments = engine_args.engine_args(replace(SPEC, max_num_seqs=700))
    assert str(arguments.worker_cls).endswith("cuda_worker.EvictingGPUWorker")
    assert (arguments.enforce_eager, arguments.async_scheduling) == (False, True)
    assert str(arguments.scheduler_cls).endswith(".EvictingAsyncScheduler")
    assert EvictingAsyncScheduler.__mro__[1:4] == (EvictingScheduler, AsyncScheduler, Scheduler)
    stages = engine_args.engine_args(replace(SPEC, pp=2))
    assert (stages.async_scheduling, str(stages.scheduler_cls)[-18:]) == (False, ".EvictingScheduler")
    assert arguments.enable_chunked_prefill
    assert arguments.num_gpu_blocks_override is None
    whole = engine_args.engine_args(replace(SPEC, needs=(("attention", "prefill"),)))
    assert not whole.enable_chunked_prefill
    assert whole.max_num_batched_tokens == SPEC.max_num_seqs * SPEC.max_prompt_tokens
    stock = engine_args.engine_args(replace(SPEC, keep_ceiling=0, interval=0))
    assert (stock.scheduler_cls, stock.async_scheduling) == (None, None)


def ahead() -> SimpleNamespace:
    """A plain configuration as engine_args asks for on CUDA."""
    given = config()
    given.scheduler_config.async_scheduling = True
    given.scheduler_config.scheduler_cls = "workers.vllm_engine.scheduler.EvictingAsyncScheduler"
    return given


@pytest.mark.parametrize(
    ("needs", "path", "value", "says"),
    [
        (Needs(), "scheduler_config.scheduler_cls", "EvictingScheduler", "they must match"),
        (Needs(), "scheduler_config.async_scheduling", False, "they must match"),
        (Needs(), "parallel_config.pipeline_parallel_size", 2, "beside pipeline parallelism"),
        (Needs(attention="prefill"), "scheduler_config.enable_chunked_prefill", True, "attention of whole prompts"),
        (Needs(all_layers=True), "parallel_config.pipeline_parallel_size", 2, "all layers at once"),
        (Needs(), "speculative_config", object(), "speculative decoding"),
        (Needs(), "cache_config.cache_dtype", "fp8", "'fp8'"),
    ],
)
def test_what_v2_cannot_run_is_named(needs: Needs, path: str, value: Any, says: str) -> None:
    given = ahead()
    refuse_config(given, needs)
    *parents, leaf = path.split(".")
    target: Any = given
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, leaf, value)
    with pytest.raises(SettingsError, match=says):
        refuse_config(given, needs)


def test_v2_takes_what_only_v1_refuses() -> None:
    given = ahead()
    given.scheduler_config.async_scheduling, given.scheduler_config.scheduler_cls = False, "x.EvictingScheduler"
    given.scheduler_config.enable_chunked_prefill = True
    given.parallel_config.pipeline_parallel_size = 2
    refuse_config(given, Needs(recent_queries=8, attention="step"))


def test_a_layer_of_another_backend_is_refused() -> None:
    class Stock:
        def initialize_kv_cache(self, *_: Any) -> None:
            """Nothing."""

    layer = SimpleNamespace(impl=SimpleNamespace())
    state = type("State", (EvictingModelState, Stock), {})()
    context = SimpleNamespace(static_forward_context={"model.layers.0.attn": layer})
    additional = {"evictbench": EngineSettings(8, 2, 4).as_config()}
    state.vllm_config = SimpleNamespace(compilation_config=context, additional_config=additional)
    group = SimpleNamespace(layer_names=["model.layers.0.attn"])
    with pytest.raises(SettingsError, match=r"through SimpleNamespace: start vLLM with .* FLASH_ATTN"):
        state.initialize_kv_cache(SimpleNamespace(kv_cache_groups=[group]), None)


def test_memory_that_the_tables_take_is_known_before_they_exist() -> None:
    needs = Needs(recent_queries=4, attention="step", slot_state=2)
    settings, shape = EngineSettings(24, 4, 20, needs), RecordShape(3, 2, 4, 8, torch.bfloat16)
    records = Records(needs, shape, 5, settings.capacity)
    requests = Requests(settings, 3, 2, 5, records)
    assert records.mass is not None
    assert records.slot_state is not None
    tables = (requests.positions, records.queries, records.mass, records.slot_state)
    assert planned_table_bytes(settings, shape, 5, ahead=False) == sum(table.nbytes for table in tables)
    assert planned_table_bytes(settings, shape, 5, ahead=True) == sum(table.nbytes for table in (*tables, tables[0]))


def check_backend(ours: Any, stock: Any, name: str) -> None:
    assert ours.get_impl_cls().__mro__[1:3] == (cuda_backend.EvictingImpl, stock.get_impl_cls())
    assert ours.get_builder_cls() is stock.get_builder_cls()
    assert ours.get_name() == stock.get_name() == name


def test_backends_are_ours_and_then_vllms_again() -> None:
    try:
        cuda_backend.override_backends()
        for name, backend in cuda_backend.BACKENDS.items():
            ours, stock = name.get_class(), backend.__mro__[1]
            assert ours is backend
            check_backend(ours, stock, name.name)
    finally:
        cuda_backend.restore_backends()
    assert AttentionBackendEnum.FLASH_ATTN.get_class().__module__.startswith("vllm.")


def test_a_model_family_keeps_its_own_state() -> None:
    class Own(DefaultModelState):
        """A family's."""

    stock, _ = ModelRegistry.resolve_model_cls(*_asked())
    with evicting_model(_asked()[1]):
        plain, _ = ModelRegistry.resolve_model_cls(*_asked())
        assert issubclass(plain, stock)
        assert plain is not stock
        assert plain.get_model_state_cls(plain.__new__(plain)).__mro__[1:3] == (EvictingModelState, DefaultModelState)
    assert ModelRegistry.resolve_model_cls(*_asked())[0] is stock
    assert not hasattr(stock, "get_model_state_cls")
    assert evicting(Own).__mro__[1:3] == (EvictingModelState, Own)


def _asked() -> tuple[list[str], Any]:
    names = ["LlamaForCausalLM"]
    return names, SimpleNamespace(
        architectures=names, model_impl="auto", convert_type="none", runner_type="generate", hf_config=None
    )
