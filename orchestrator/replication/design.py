"""How a run differs from the publication on purpose: reasons that stand beside the numbers, never instead of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

INTERVAL = 64
# Temperature and top_p of the checkpoints' generation configs, which the authors used; they ignored top_k.
SAMPLING = {"Phi-4-reasoning": (0.8, 0.95)}
QWEN = (0.6, 0.95)


def reasons(cell: Mapping[str, Any], identity: Mapping[str, Any] | None, model: str) -> Iterator[str]:
    """What a cell does otherwise than the published run; `identity` of a planned cell tells top_p, top_k and dtype."""
    if cell["interval"] is not None and cell["interval"] != INTERVAL:
        yield f"interval {cell['interval']}, published {INTERVAL}"
    if cell["recent"] is not None and cell["recent"] != INTERVAL:
        yield f"newest {cell['recent']} tokens protected, published {INTERVAL}"
    temperature, top_p = SAMPLING.get(model, QWEN)
    if cell["temperature"] != temperature:
        yield f"temperature {cell['temperature']:g}, published {temperature:g}"
    if cell["policy"] == "vase" and cell["protection"] == "prompt":
        yield "vase takes a quarter of keep by value range; the authors' protected form takes what the prompt leaves"
    if identity is None:
        return
    sampling = identity["sampling"]
    if sampling["top_p"] != top_p:
        yield f"top_p {sampling['top_p']:g}, published {top_p:g}"
    if sampling["top_k"]:
        yield f"top_k {sampling['top_k']}, published off"
    if identity["model"]["dtype"] != "bfloat16":
        yield f"{identity['model']['dtype']}, published bfloat16"
    if cell["task"] == "gpqa_diamond" and identity["protocol"] != "published":
        yield "answer options shuffled; in the published file the right one is always A"
