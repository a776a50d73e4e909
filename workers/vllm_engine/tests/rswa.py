"""vLLM's own window attention (R-SWA) on its V2 runner under Triton's interpreter, in a process of its own.

    python -m workers.vllm_engine.tests.rswa MODEL WINDOW TOKENS OUTPUT ID...

Greedy, fp32; ids are the prompt, generated ids go to OUTPUT. Nothing of ours runs: decode tokens see the
prompt and the newest WINDOW tokens, themselves included. CPU_ATTN has no such window, TRITON_ATTN does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from workers.vllm_engine.tests.interpreted import _enter


def main(model: str, window: int, tokens: int, output: str, prompt: list[int]) -> None:
    """Generate."""
    _enter()
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - after triton has its stand-in
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend  # noqa: PLC0415 - as above

    triton = "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"
    register_backend(AttentionBackendEnum.CPU_ATTN, triton)
    llm = LLM(
        model,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=1,
        enforce_eager=True,
        num_gpu_blocks_override=32,
        block_size=32,
        kv_cache_memory_bytes=1 << 28,
        async_scheduling=False,
        hf_overrides={"rswa_window": window},
    )
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    made = llm.generate({"prompt_token_ids": prompt}, params)[0].outputs[0]
    Path(output).write_text(json.dumps(list(made.token_ids)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], [int(token) for token in sys.argv[5:]])
