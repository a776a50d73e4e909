"""Admission: what a request asks of eviction is settled before it is queued; one that cannot run fails alone.

Named by vLLM's scheduler_cls. Requests without an entry of ours follow the engine's default, which is written into
their own sampling parameters, so that the cache manager and every worker read one and the same settings.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.request import Request, RequestStatus

from workers.vllm_engine.settings import KEY, EngineSettings, SettingsError, entry_of, from_extra_args
from workers.vllm_engine.state import reads_prefix_cache, resolve_policy

# below "vllm", whose level and handler the user has set
logger = init_logger("vllm.evictbench")


class EvictingScheduler(Scheduler):
    """vLLM's scheduler that admits only what the plugin can do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = EngineSettings.from_additional_config(self.vllm_config.additional_config)
        if settings is None:
            raise SettingsError("EvictingScheduler needs additional_config['evictbench']")
        self._settings = settings
        self._refused: list[tuple[int, EngineCoreOutput]] = []

    def add_request(self, request: Request) -> None:
        """Queue a request; one that cannot run finishes with an error in the next step, and the log says why."""
        try:
            settle(request, self._settings)
        except SettingsError as error:
            logger.error("request %s is refused: %s", request.request_id, error)
            super().add_request(request)
            self.finish_requests(request.request_id, RequestStatus.FINISHED_ERROR)
            output = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR, stop_reason=str(error))
            self._refused.append((request.client_index, output))
            return
        super().add_request(request)

    def update_from_output(self, *args: Any, **kwargs: Any) -> dict[int, EngineCoreOutputs]:
        """As the base, with the refusals since the last step."""
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(*args, **kwargs)
        for client, output in self._refused:
            outputs.setdefault(client, EngineCoreOutputs()).outputs.append(output)
        self._refused.clear()
        return outputs


class EvictingAsyncScheduler(EvictingScheduler, AsyncScheduler):
    """The same one step ahead of the device; what a request ran after its end is taken back (DeviceCore.cut)."""


def settle(request: Request, settings: EngineSettings) -> None:
    """Give the request the engine's default where it has none, and no cached prompt blocks where those must not serve.

    Raises SettingsError for a request that this engine cannot run.
    """
    params, prompt = request.sampling_params, request.num_prompt_tokens
    if params is None:
        raise SettingsError("only text generation can evict")
    if request.resumable:
        raise SettingsError("a session whose prompt grows cannot run here; send whole prompts")
    entry = entry_of(params.extra_args) or (json.loads(settings.default) if settings.default else None)
    if entry is not None and (KEY not in (params.extra_args or {}) or "seed" not in entry):
        params = request.sampling_params = params.clone()
        own = {"seed": _seed(params.seed, request.request_id), **entry}
        params.extra_args = {**(params.extra_args or {}), KEY: own}
    policy, schedule = resolve_policy(from_extra_args(params.extra_args), prompt, prompt, settings)
    room = settings.keep_ceiling + settings.interval
    if policy is None and prompt + request.max_tokens > room:
        raise SettingsError(
            f"it does not evict, so prompt {prompt} + max_tokens {request.max_tokens} must fit keep + interval = "
            f"{room}; ask for fewer tokens, name a policy in {KEY}, or give the engine a default"
        )
    if not reads_prefix_cache(policy, schedule, prompt):
        request.skip_reading_prefix_cache = True


def _seed(sampling_seed: int | None, request_id: str) -> int:
    """Eviction seed of a request without one: repeatable with a sampling seed, and each of n samples has its own."""
    own = request_id if sampling_seed is None else str(sampling_seed)
    return int.from_bytes(hashlib.blake2b(f"evict {own}".encode(), digest_size=8).digest(), "little")
