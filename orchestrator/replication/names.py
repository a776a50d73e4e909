"""Published names and what they are called here.

Only equal model ids are compared: the hub id itself, or a local directory that carries the id's last part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MODELS: Mapping[str, str] = {
    "Qwen3-4B": "Qwen/Qwen3-4B",
    "Qwen3-14B": "Qwen/Qwen3-14B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Phi-4-reasoning": "microsoft/Phi-4-reasoning",
    "Qwen3.5-4B": "Qwen/Qwen3.5-4B",
}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A published task: our name, its problems, published samples per problem."""

    name: str
    problems: int
    samples: int


TASKS: Mapping[str, Benchmark] = {
    "MATH500": Benchmark("math500", 500, 2),
    "GPQA-D": Benchmark("gpqa_diamond", 198, 4),
    "AIME": Benchmark("aime", 60, 16),
    "HMMT": Benchmark("hmmt", 60, 16),
    "LiveCodeBench": Benchmark("livecodebench", 383, 4),
}


@dataclass(frozen=True, slots=True)
class Method:
    """A published method: our policies that are it, the preferred first, and parameters that must have these values.

    bare  our protections that are its published rule without prompt protection, the preferred first
    """

    policies: tuple[str, ...]
    params: Mapping[str, object] = field(default_factory=dict)
    bare: tuple[str, ...] = ("none",)

    def protections(self, published: str) -> tuple[str | None, ...]:
        """Our protections for `yes`, `no`, or what needs none."""
        if self.policies == ("full",):
            return (None,)
        return self.bare if published == "no" else ("prompt",)


# The four scored methods of the main grid, in its order.
CONTENDERS = ("SnapKV", "R-KV", "VaSE", "TriAttention")
REFERENCE = "Random Attention"

METHODS: Mapping[str, Method] = {
    "Full": Method(("full",)),
    REFERENCE: Method(("random",)),
    "SnapKV": Method(("snapkv",)),
    "R-KV": Method(("rkv",)),
    # The authors' VaSE always keeps four sinks, inside its score; ours may have them by protection.
    "VaSE": Method(("vase_paper", "vase"), bare=("none", "sinks")),
    "TriAttention": Method(("triattention",)),
    "Recency window": Method(("recent",)),
    "Random shared draw": Method(("random_shared",)),
    **{f"Random blocks B={size}": Method(("random_block",), {"block": size}) for size in (4, 16, 64, 256)},
}


# Spellings of the same arm in other tables.
ALIASES: Mapping[str, str] = {
    f"{REFERENCE} (HF)": REFERENCE,
    f"{REFERENCE} (vLLM port)": REFERENCE,
    "Random blocks B=1": REFERENCE,
}


def same_model(published: str, path: str) -> bool:
    """Whether a job's model path is the published model."""
    hub = MODELS.get(published)
    if hub is None:
        return False
    local = path.startswith(("/", ".", "~")) or path.count("/") > 1
    return path == hub or (local and path.rstrip("/").rsplit("/", 1)[-1] == hub.rsplit("/", 1)[-1])
