"""A simulated engine that writes down what is asked of it, and reports sizes as vLLM's does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any

from workers.api import EngineSpec, Generation, Provenance, Request
from workers.simulated import CostModel, SimulatedEngine

LOG: list[tuple[EngineSpec, str, tuple[Request, ...]]] = []


class MeteredEngine(SimulatedEngine):
    """LOG takes (spec, what, requests); a prompt that was seen since forget_prompts counts as cached."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec, CostModel(step=1e-5, per_sequence=0, per_cached_token=0, per_prompt_token=0, load=0))
        self._spec_seen, self._known = spec, set[tuple[int, ...]]()
        self._hits: set[str] = set()

    def start(self) -> Provenance:
        """As vLLM's: bytes of a token, and of tables."""
        LOG.append((self._spec_seen, "start", ()))
        tables = {"positions": 1_000, "recent_queries": 20_000, "attention": 300_000, "calibration": 7}
        extra = {"pool_blocks": self._spec_seen.pool_blocks, "bytes_per_token": 512.0}
        return replace(super().start(), extra=extra | {"table_bytes": tables if self._spec_seen.keep_ceiling else {}})

    def submit(self, requests: Sequence[Request]) -> None:
        """As the base."""
        LOG.append((self._spec_seen, "submit", tuple(requests)))
        self._hits = {r.request_id for r in requests if r.prompt_token_ids in self._known}
        self._known |= {r.prompt_token_ids for r in requests}
        super().submit(requests)

    def step(self) -> list[Generation]:
        """As the base."""
        return [replace(g, n_cached_prompt=g.n_prompt * (g.request_id in self._hits)) for g in super().step()]

    def forget_prompts(self) -> None:
        """Nothing is known any more."""
        LOG.append((self._spec_seen, "forget", ()))
        self._known.clear()


class Here(Executor):
    """Runs in this process, at once."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def submit(self, work: Any, /, *given: Any, **named: Any) -> Future[Any]:
        """As an executor's."""
        future: Future[Any] = Future()
        try:
            future.set_result(work(*given, **named))
        except Exception as error:
            future.set_exception(error)
        return future
