"""Texts for the reasoner's calibration: what it writes itself, with nothing evicted, on problems that no task has.

python -m infra.reasoner.calibration_texts OUT.jsonl
evictbench calibrate embedded:reasoner --texts OUT.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from orchestrator import models
from orchestrator.prompts import Renderer
from orchestrator.tasks.reasoner import Numbers, Program, Walk

PER_FAMILY = 32
STEPS = (12, 32)
MAX_TOKENS = 1400


def main(out: Path) -> None:
    """Write one {"text": prompt and answer} a line; greedy, so every run writes the same file."""
    model = models.resolve("embedded:reasoner")
    tokenizer = AutoTokenizer.from_pretrained(model.path_on_disk, padding_side="left")
    network = AutoModelForCausalLM.from_pretrained(model.path_on_disk, dtype=torch.float32).eval()
    renderer = Renderer(model)
    with out.open("w", encoding="utf-8") as stream:
        for family in (Walk, Program):
            # The key is no problem id of a task, so these are other problems than any task's.
            problems = [
                family.draw(Numbers(f"calibration-{family.__name__}-{index}"), STEPS, (4, 8)[index % 2])
                for index in range(PER_FAMILY)
            ]
            prompts = [renderer.render([{"role": "user", "content": problem.prompt}]).text for problem in problems]
            batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.inference_mode():
                written = network.generate(**batch, max_new_tokens=MAX_TOKENS, do_sample=False)
            for prompt, row in zip(prompts, written[:, batch["input_ids"].shape[1] :], strict=True):
                answer = tokenizer.decode(row[row != tokenizer.pad_token_id])
                stream.write(json.dumps({"text": prompt + answer}) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: calibration_texts.py OUT.jsonl")
    main(Path(sys.argv[1]))
