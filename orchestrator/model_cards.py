"""What model cards recommend: sampling, length and system prompt per family of models.

A checkpoint's own generation_config.json names temperature, top_p and top_k where its makers set them; cards add what
only their text says: how many tokens an answer may have, and for some the sampling itself. A job's `sampling` overrides
every value, `protocol: published` the filters and the length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from orchestrator.cells import SamplingRef
from orchestrator.errors import UserError
from orchestrator.models import ResolvedModel
from orchestrator.spec_sections import SamplingSpec

PUBLISHED = "published"
PUBLISHED_TOKENS = 32_768
"""Prompt and answer together, in tokens: the length limit of the authors' harness, whatever the model's window."""


_OFF: Mapping[str, float] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


@dataclass(frozen=True, slots=True)
class Card:
    """A family's recommendations.

    names       matches the last part of a model's path, without regard to case
    sampling    temperature, top_p, top_k, min_p; what is missing comes from the checkpoint's generation config
    max_tokens  generated tokens at most; a request gets less where its prompt leaves less of the window
    system      words of the system prompt that the chat template writes by itself; empty when it writes none
    source      where the recommendations stand
    """

    title: str
    names: str
    max_tokens: int
    sampling: Mapping[str, float] = field(default_factory=dict)
    system: str = ""
    source: str = ""


CARDS = (
    Card(
        "Qwen3, thinking mode",
        r"qwen3-[\d.]+b(-a\d+b)?(-(fp8|awq|thinking.*))?",
        32_768,
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
        source="Qwen3 model card, best practices 1 and 2; never greedy",
    ),
    Card(
        "Phi-4-reasoning",
        r"phi-4(-mini)?-reasoning(-plus)?",
        32_768,
        {"temperature": 0.8, "top_p": 0.95, "top_k": 50},
        system="You are Phi",
        source="Phi-4-reasoning model card; 32k is prompt and answer together",
    ),
    Card(
        "SmolLM2, instruct",
        r"smollm2(-[\d.]+[bm]-instruct)?",
        2_048,
        {"temperature": 0.2, "top_p": 0.9},
        source="SmolLM2 model card, example; the length is ours",
    ),
    Card("the embedded reasoner", r"embedded:reasoner", 1_500, source="jobs/models/reasoner; the length is ours"),
)


@dataclass(frozen=True, slots=True)
class Settled:
    """Sampling of one model in one job.

    sources what the job does not name, and whose value that is; empty when the job names all
    fits    max_tokens is the job's own, so prompt and answer must fit; otherwise a request's limit gives way
    window  positions that prompt and answer may take together
    """

    ref: SamplingRef
    window: int
    fits: bool
    sources: str


def card(path: str) -> Card | None:
    """The card of a model by the last part of its path: hub ids and folders named after them are recognised."""
    name = path if path.startswith("embedded:") else PurePosixPath(path).name
    plain = name.removeprefix("embedded:")
    return next(
        (each for each in CARDS if any(re.fullmatch(each.names, text, re.IGNORECASE) for text in (name, plain))), None
    )


def settle(wanted: SamplingSpec, path: str, model: ResolvedModel, max_model_len: int | None, protocol: str) -> Settled:
    """The job's values, else the protocol's, else the card's, else the generation config's; filters default to off.

    Raises UserError where nobody names a temperature or a length.
    """
    known = card(path)
    rules: dict[str, Mapping[str, float]] = {
        "job": {key: value for key, value in wanted.model_dump().items() if value is not None},
        "protocol": {"top_k": 0, "min_p": 0.0, "max_tokens": PUBLISHED_TOKENS} if protocol == PUBLISHED else {},
        f"card of {known.title}" if known else "card": {**known.sampling, "max_tokens": known.max_tokens}
        if known
        else {},
        "generation config": model.sampling,
        "default": _OFF,
    }
    values: dict[str, float] = {}
    sources: dict[str, list[str]] = {}
    for key in ("temperature", "top_p", "top_k", "min_p", "max_tokens"):
        source = next((name for name, rule in rules.items() if key in rule), None)
        if source is None:
            raise UserError(
                f"no {key} is known for model '{path}': it has no card here and its generation_config.json names none. "
                f"Write sampling.{key}."
            )
        values[key] = rules[source][key]
        if source != "job" and values[key] != _OFF.get(key):
            sources.setdefault(source, []).append(f"{key} {values[key]:g}")
    window = max_model_len or (min(model.window, PUBLISHED_TOKENS) if protocol == PUBLISHED else model.window)
    ref = SamplingRef(
        float(values["temperature"]),
        float(values["top_p"]),
        # -1 is off in generation configs, 0 here
        max(0, int(values["top_k"])),
        float(values["min_p"]),
        int(values["max_tokens"]),
    )
    told = "; ".join(f"{', '.join(keys)} by {name}" for name, keys in sources.items())
    return Settled(ref, window, "max_tokens" in rules["job"], told)


def system_note(path: str, prompt: str) -> str | None:
    """What is missing from a rendered prompt that the model's card says the template writes."""
    known = card(path)
    if known is None or not known.system or known.system in prompt:
        return None
    return (
        f"{path}: the chat template of this checkpoint writes no system prompt, but {known.title} was trained with one "
        f"('{known.system} ...'); take the template of the original checkpoint"
    )
