"""The V2 adapter on the CPU: vLLM's V2 runner and every kernel under Triton's interpreter, in a process of its own.

    python -m workers.vllm_engine.tests.interpreted REQUESTS OUTPUT

REQUESTS is a pickled Job; what comes of it goes to OUTPUT: (generations by request of each batch, provenance).
vLLM wants Triton's CPU backend for this runner, so a name stands in for it. Two of vLLM's kernels ask a GPU for its
capability. Attention is TRITON_ATTN, whose interpreted kernel takes minutes; `plain` puts the same sums in torch in its
place, over the same cache and metadata.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from workers.api import EngineSpec, Request


@dataclass(frozen=True, slots=True)
class Job:
    """Batches of requests for one engine; plain = attention in torch."""

    spec: EngineSpec
    batches: Sequence[Sequence[Request]]
    plain: bool = True


class _Driver:
    @staticmethod
    def is_active() -> bool:
        return True


def _enter() -> None:
    """Before triton and vllm are imported."""
    os.environ |= {
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    from triton.backends import backends  # noqa: PLC0415 - only in this process

    backends["cpu"] = SimpleNamespace(driver=_Driver, compiler=None)
    import torch  # noqa: PLC0415 - only in this process
    import vllm.v1.worker.cpu.shm  # noqa: F401, PLC0415 - vLLM's own stand-ins for CUDA streams and events

    from policies.kernels.tests.interpreter import patch_once  # noqa: PLC0415 - only in this process

    patch_once()
    torch.cuda.get_device_capability = lambda *_: (9, 0)


def _choose_backend(plain: bool) -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend  # noqa: PLC0415 - as above

    from workers.vllm_engine.cuda_backend import EvictingTritonBackend  # noqa: PLC0415 - as above
    from workers.vllm_engine.tests.plain_attention import PlainBackend  # noqa: PLC0415 - as above

    backend = PlainBackend if plain else EvictingTritonBackend
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{backend.__module__}.{backend.__qualname__}")


def main(job_path: str, output: str) -> None:
    """Run a job."""
    _enter()
    job: Job = pickle.loads(Path(job_path).read_bytes())
    _choose_backend(job.plain)
    from workers.vllm_engine.tests.cases import run  # noqa: PLC0415 - vLLM's environment is set above

    engine: Any
    from workers.vllm_engine.engine import VllmEngine  # noqa: PLC0415 - as above

    engine = VllmEngine(job.spec)
    provenance = engine.start()
    found = [run(engine, requests) for requests in job.batches], provenance
    engine.close()
    Path(output).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
