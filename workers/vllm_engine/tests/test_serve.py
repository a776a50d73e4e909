"""`vllm serve` with the flags of docs/serve.md, driven by the OpenAI client over loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from policies.budget import Protection
from workers.transformers_engine.dense import DenseReference
from workers.vllm_engine.settings import KEY, to_extra_args
from workers.vllm_engine.tests.cases import FIRST, INTERVAL, MODEL, SECOND, TOKENS, eviction

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DEFAULT = {"v": 1, "policy": "random", "keep": 64, "recent": INTERVAL, "protection": "prompt"}
SETTINGS = {
    "keep_ceiling": 112,
    "interval": INTERVAL,
    "max_prompt_tokens": 120,
    "needs": {"recent_queries": 64},
    "default": DEFAULT,
}
FLAGS = (
    "--worker-cls workers.vllm_engine.cpu_worker.EvictingCPUWorker "
    "--scheduler-cls workers.vllm_engine.scheduler.EvictingScheduler "
    "--logits-processors workers.vllm_engine.serving:RequestCheck --no-enable-chunked-prefill"
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # `vllm serve` asks for the version of a distribution named vllm, which the CPU build is not
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, *FLAGS.split()]
    command += ["--additional-config", json.dumps({KEY: SETTINGS}), "--served-model-name", "m", "--dtype", "float32"]
    command += ["--max-model-len", "512", "--max-num-seqs", "32", "--enforce-eager", "--host", "127.0.0.1"]
    env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [*command, "--port", str(port)], stdout=out, stderr=out, env=env, start_new_session=True
        )
        try:
            _wait(server, f"http://127.0.0.1:{port}/health", log)
            yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(15)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 270
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise AssertionError(log.read_text()[-3000:])


def ask(client: openai.OpenAI, entry: dict[str, Any] | None = None, **given: Any) -> Any:
    body: dict[str, Any] = {"return_token_ids": True, "ignore_eos": True}
    if entry is not None:
        body["vllm_xargs"] = {KEY: json.dumps(entry)}
    options: dict[str, Any] = {"prompt": list(SECOND), "max_tokens": TOKENS, "temperature": 0} | given
    return client.completions.create(model="m", extra_body=body, **options)


@pytest.fixture(scope="module")
def dense() -> DenseReference:
    return DenseReference(MODEL)


@pytest.mark.parametrize("policy", ["random", "random_inplace", "snapkv"])
def test_a_request_chooses_its_policy(client: openai.OpenAI, dense: DenseReference, policy: str) -> None:
    arm = eviction(policy, Protection.SINKS, keep=64)
    found = ask(client, to_extra_args(arm)[KEY]).choices[0].token_ids
    assert found == dense.generate(SECOND, arm, INTERVAL, TOKENS, ignore_end=True).token_ids
    assert found != dense.generate(SECOND, None, INTERVAL, TOKENS, ignore_end=True).token_ids


def test_without_an_entry_the_default_acts_and_streams(client: openai.OpenAI, dense: DenseReference) -> None:
    """The default's 64 tokens do not suffice to repeat what the full cache says; a seed makes it repeatable."""
    whole = ask(client, prompt=list(FIRST), seed=5)
    streamed = "".join(chunk.choices[0].text for chunk in ask(client, prompt=list(FIRST), seed=5, stream=True))
    assert streamed == whole.choices[0].text
    assert whole.usage.completion_tokens == TOKENS


def test_parallel_samples_logprobs_and_stop(client: openai.OpenAI) -> None:
    samples = ask(client, n=3, temperature=1.0, seed=3, logprobs=2)
    assert len({choice.text for choice in samples.choices}) == 3
    assert all(len(choice.logprobs.token_logprobs) == TOKENS for choice in samples.choices)
    text = ask(client).choices[0].text
    stop = text[20:23]
    stopped = ask(client, stop=stop).choices[0]
    assert (stopped.finish_reason, stopped.text) == ("stop", text[: text.index(stop)])


def test_a_request_that_cannot_run_fails_alone(client: openai.OpenAI) -> None:
    nobody_can = [
        (DEFAULT | {"polcy": "random"}, "unknown key 'polcy'"),
        (DEFAULT | {"policy": "randum"}, "unknown policy 'randum'"),
    ]
    this_engine_cannot = [DEFAULT | {"keep": 400}, DEFAULT | {"policy": "h2o"}, DEFAULT | {"policy": "full"}]
    with ThreadPoolExecutor(8) as pool:
        good = pool.submit(ask, client)
        for entry, says in nobody_can:
            with pytest.raises(openai.BadRequestError, match=says):
                ask(client, entry)
        for entry in this_engine_cannot:
            with pytest.raises(openai.InternalServerError):
                ask(client, entry, max_tokens=400 if entry["policy"] == "full" else TOKENS)
        assert good.result().choices[0].finish_reason == "length"


def test_an_abandoned_stream_frees_its_place_and_64_clients_are_served(client: openai.OpenAI) -> None:
    stream = ask(client, stream=True, max_tokens=400)
    for _, _chunk in zip(range(20), stream, strict=False):
        pass
    stream.close()
    policies = ("random", "random_inplace", "snapkv", "recent")
    entries = [
        to_extra_args(eviction(policies[i % 4], list(Protection)[i % 3], keep=64, seed=i))[KEY] for i in range(64)
    ]
    with ThreadPoolExecutor(64) as pool:
        found = list(pool.map(lambda entry: ask(client, entry, max_tokens=100).choices[0], entries))
    assert [len(choice.token_ids) for choice in found] == [100] * 64
    again = ask(client, entries[7], max_tokens=100).choices[0]
    assert again.token_ids == found[7].token_ids
    metrics = httpx.get(str(client.base_url).replace("/v1/", "/metrics")).text
    running = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
    preempted = [line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total")]
    assert running[0].endswith(" 0.0")
    assert preempted[0].endswith(" 0.0")
