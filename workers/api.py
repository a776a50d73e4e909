"""The engine contract: what the orchestrator hands to any engine and what it gets back.

Standard library and policies.budget only: these values cross process and Ray boundaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from policies.budget import Overflow, Protection

AGE_BINS = 32


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything that needs a new engine process when it changes (EngineKey, contracts.md section 3).

    keep_ceiling      largest keep any request of this engine may ask for, tokens; 0 = eviction plugin off (stock vLLM)
    interval          r in tokens; fixed per engine because block capacity depends on it
    max_prompt_tokens longest rendered prompt that will be sent; the pool check uses it
    needs             names of the policies.base.Needs fields that must be provided, with values, sorted; without
                      positions and order, which every engine that evicts gives
    pool_blocks       KV blocks of the pool; None lets the engine decide from memory
    calibration       file of statistics for policies that need them (policies/calibration.py); empty for none
    nodes             machines that one engine spans, in equal parts; above 1 its ranks run on Ray
    """

    kind: str
    model: str
    revision: str
    dtype: str
    max_model_len: int
    max_prompt_tokens: int
    keep_ceiling: int
    interval: int
    needs: tuple[tuple[str, Any], ...] = ()
    tp: int = 1
    pp: int = 1
    max_num_seqs: int = 64
    block_size: int = 32
    pool_blocks: int | None = None
    enforce_eager: bool = False
    calibration: str = ""
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling of one request; temperature 0 is greedy, max_tokens counts generated tokens.

    ignore_eos  go on to max_tokens whatever is generated: for measuring speed
    """

    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """Per-request eviction settings; travels to the plugin as extra_args["evictbench"] (contracts.md section 3)."""

    policy: str
    params: Mapping[str, Any]
    keep: int
    recent: int
    protection: Protection
    n_sink: int
    seed: int
    overflow: Overflow = Overflow.GROW


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to make. `request_id` is unique within an engine's life; no gold answer is in here."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    eviction: Eviction | None


@dataclass(frozen=True, slots=True)
class EvictionTrace:
    """What eviction did to one request, measured by the worker that ran it.

    events              selections made (event mode), or overwritten tokens (in-place mode)
    expected_events     the same by the formula of contracts.md section 1; attestation demands equality
    prompt_kept_min/mean  share of prompt tokens still cached at the end, over layers x KV heads
    cached_peak/mean    cached tokens per KV head, over decode steps
    overflow            True when K' > keep for this request
    age_histogram       log2 bins of the age in tokens of the slots cached at the end, all heads
    union_alive         tokens held by at least one (layer, KV head) at the end
    kept_crc            xor over hash(layer, head, event, kept logical positions), u64
    nan_scores          candidates that a policy scored NaN, over events, layers and heads: ranked last
    """

    events: int
    expected_events: int
    prompt_kept_min: float
    prompt_kept_mean: float
    cached_peak: int
    cached_mean: float
    overflow: bool
    age_histogram: tuple[int, ...]
    union_alive: int
    kept_crc: int
    nan_scores: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished request, times in seconds; finish_reason as in vLLM ("stop" | "length" | "abort" | "error").

    n_cached_prompt  prompt tokens that a prefix cache answered for
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    n_prompt: int
    n_output: int
    finish_reason: str
    queue_seconds: float
    ttft_seconds: float
    e2e_seconds: float
    decode_tokens_per_second: float
    preemptions: int
    concurrency: int
    trace: EvictionTrace | None
    n_cached_prompt: int = 0


@dataclass(frozen=True, slots=True)
class Provenance:
    """How an engine was built; copied into every row it produces."""

    engine_id: str
    kind: str
    versions: Mapping[str, str]
    runner: str
    graph_mode: str
    device: str
    node: str
    pid: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counters:
    """Heartbeat of a running engine; counts since start."""

    waiting: int
    running: int
    generated_tokens: int
    finished: int
    preemptions: int


class Engine(Protocol):
    """A continuous-batching engine driven from one thread."""

    def start(self) -> Provenance:
        """Load, self-check and attest. Raises Fatal, OutOfMemory or PolicyNotActive."""

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests. Raises Fatal for a request that can never run (named), before queueing any of them."""

    def step(self) -> list[Generation]:
        """Advance by one engine step; returns requests that finished in it. Raises EngineError."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; unknown ids are ignored."""

    def counters(self) -> Counters:
        """Cheap; safe to call between steps."""

    def forget_prompts(self) -> None:
        """Empty the prefix cache, so that no earlier prompt helps a later one; no request may be open."""

    def close(self) -> None:
        """Release everything; idempotent."""
