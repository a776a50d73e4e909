"""vLLM's own window attention against our `recent`, where the two mean the same: prompt and newest tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from policies.budget import Protection
from workers.transformers_engine.dense import DenseReference
from workers.vllm_engine.tests.cases import FIRST, eviction, random_llama

WINDOW, TOKENS = 6, 30


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(1800)
def test_recent_at_interval_1_is_the_window_attention_of_vllm(tmp_path: Path) -> None:
    """R-SWA: a decode token sees the prompt and the newest WINDOW tokens, itself included. Nothing of ours runs there.

    With interval 1 an event before every token leaves prompt + WINDOW - 1 tokens, and the token itself is one more.
    """
    model, prompt, output = random_llama(tmp_path / "model", 2, 1, 32), FIRST[:10], tmp_path / "tokens.json"
    numbers = (WINDOW, TOKENS, output, *prompt)
    command = [sys.executable, "-m", "workers.vllm_engine.tests.rswa", model, *map(str, numbers)]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    dense = DenseReference(model)
    window = eviction("recent", Protection.PROMPT, keep=len(prompt) + WINDOW - 1, recent=1)
    ours = dense.generate(prompt, window, 1, TOKENS, ignore_end=True)
    assert ours.events == TOKENS - WINDOW - 1
    assert json.loads(output.read_text(encoding="utf-8")) == ours.token_ids
    assert dense.generate(prompt, None, 1, TOKENS, ignore_end=True).token_ids != ours.token_ids
