"""Every policy in the real engine against the dense reference and stock vLLM: fp32, greedy, token for token.

One model at a time: stock vLLM first, then one engine that serves every policy. Used by tests and by infra/oracles.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from policies.budget import Protection
from policies.calibration import Calibration, ModelFacts, load
from workers.api import EngineSpec, Eviction, Generation, Request
from workers.transformers_engine.calibrate import calibrate
from workers.transformers_engine.dense import DenseReference, DenseResult
from workers.vllm_engine.tests.cases import (
    FIRST,
    INTERVAL,
    LONG,
    SECOND,
    SPEC,
    Arm,
    eviction,
    needs_of,
    registered,
    request,
    run,
    start,
)

KEEP, TOKENS = 64, 110
PROTECTIONS = tuple(Protection)
TESTED = str(Path(__file__).with_name("greedy_for_needs.py"))


@dataclass(frozen=True, slots=True)
class Row:
    """One arm on one model.

    requests  in the mixed batch; tokens, kept  of them equal to the reference in tokens, and in events and kept_crc
    events    fewest events of a request
    alone     the arm's first request gives the same alone as in the batch, where asked
    wide      with keep >= length every prompt gives the tokens of stock vLLM
    """

    label: str
    requests: int
    tokens: int
    kept: int
    events: int
    alone: bool
    wide: bool

    @property
    def passed(self) -> bool:
        """Everything equal, over at least five events."""
        return self.tokens == self.kept == self.requests and self.events >= 5 and self.alone and self.wide


def compare(
    model: str,
    arms: Mapping[str, Arm],
    prompts: Sequence[Sequence[int]],
    folder: Path,
    alone: Collection[str] | None = None,
    tp: int = 1,
) -> list[Row]:
    """One row per arm; `folder` takes the calibration, which is made from the prompts' tokens.

    alone   labels that are also run alone, default all
    tp      tensor-parallel ranks of the evicting engine
    """
    stock = start(replace(SPEC, model=model, keep_ceiling=0, interval=0))
    plain = run(stock, [request(str(i), prompt, None) for i, prompt in enumerate(prompts)])
    stock.close()
    spec, calibration = _spec(model, arms, len(prompts), folder)
    engine = start(replace(spec, tp=tp))
    asked = {label: _requests(label, arm, rank, prompts) for rank, (label, arm) in enumerate(arms.items())}
    wide = [
        request(f"{label}-{i}-wide", prompt, _eviction(arm, Protection.PROMPT, spec.keep_ceiling))
        for label, arm in arms.items()
        for i, prompt in enumerate(prompts)
    ]
    made = run(engine, [r for requests in asked.values() for r in requests] + wide)
    single = {
        label: run(engine, requests[:1])[requests[0].request_id]
        for label, requests in asked.items()
        if alone is None or label in alone
    }
    engine.close()
    dense = DenseReference(model, calibration)
    rows = []
    for label, requests in asked.items():
        references = [dense.generate(r.prompt_token_ids, r.eviction, INTERVAL, TOKENS) for r in requests]
        found = [made[r.request_id] for r in requests]
        unevicted = [made[f"{label}-{i}-wide"].token_ids == plain[str(i)].token_ids for i in range(len(prompts))]
        rows.append(
            Row(
                label=label,
                requests=len(requests),
                tokens=sum(list(f.token_ids) == r.token_ids for f, r in zip(found, references, strict=True)),
                kept=sum(_kept_equal(f, r) for f, r in zip(found, references, strict=True)),
                events=min(reference.events for reference in references),
                alone=label not in single or _same(single[label], found[0]),
                wide=all(unevicted),
            )
        )
    return rows


def apart(model: str, arms: Mapping[str, Arm]) -> dict[str, bool]:
    """Per arm: its rows in one engine with all the others are those of an engine of its own.

    Own engines record only what the arm needs and have its keep as their ceiling; `off` is a request without eviction,
    which in its own engine is stock vLLM. Arms differ in protection, keep and seed.
    """
    evictions = {
        label: eviction(arm.policy, PROTECTIONS[i % 3], keep=KEEP + 8 * i, params=arm.params, seed=i)
        for i, (label, arm) in enumerate(arms.items())
    }
    requests = {
        label: [request(f"{label}-{i}", prompt, own, max_tokens=TOKENS) for i, prompt in enumerate((SECOND, LONG))]
        for label, own in evictions.items()
    } | {"off": [request(f"off-{i}", prompt, None, max_tokens=TOKENS) for i, prompt in enumerate((SECOND, LONG))]}
    together = start(replace(SPEC, model=model, needs=needs_of(arms.values())))
    mixed = run(together, [r for own in requests.values() for r in own])
    together.close()
    same = {}
    for label, own in requests.items():
        spec = replace(SPEC, model=model, keep_ceiling=0, interval=0)
        if label in arms:
            spec = replace(SPEC, model=model, keep_ceiling=evictions[label].keep, needs=needs_of([arms[label]]))
        engine = start(spec)
        same[label] = all(_same(made, mixed[name]) for name, made in run(engine, own).items())
        engine.close()
    return same


def _eviction(arm: Arm, protection: Protection, keep: int) -> Eviction:
    return eviction(arm.policy, protection, keep=keep, params=arm.params)


def _requests(label: str, arm: Arm, rank: int, prompts: Sequence[Sequence[int]]) -> list[Request]:
    """The policy on every prompt, protections rotating from arm to arm."""
    return [
        request(f"{label}-{i}", prompt, _eviction(arm, PROTECTIONS[(i + rank) % 3], KEEP), max_tokens=TOKENS)
        for i, prompt in enumerate(prompts)
    ]


def _spec(model: str, arms: Mapping[str, Arm], prompts: int, folder: Path) -> tuple[EngineSpec, Calibration | None]:
    needs = needs_of(arms.values())
    spec = replace(SPEC, model=model, needs=needs, max_num_seqs=2 * len(arms) * prompts)
    if not dict(needs).get("calibration"):
        return spec, None
    # not beside the weights: vLLM loads whatever is called *.safetensors there
    facts, file = ModelFacts.read(Path(model), ""), folder / "statistics" / "calibration.safetensors"
    calibrate(Path(model), facts, [FIRST, SECOND, LONG], "blake2b:prompts").save(file)
    return replace(spec, calibration=str(file)), load(file, facts)


def _same(one: Generation, other: Generation) -> bool:
    return (one.token_ids, one.trace) == (other.token_ids, other.trace)


def _kept_equal(made: Generation, reference: DenseResult) -> bool:
    assert made.trace is not None
    return (made.trace.events, made.trace.kept_crc) == (reference.events, reference.crc)


def every_arm() -> dict[str, Arm]:
    """All policies of the registry and the tests' own, by label."""
    return registered() | {name: Arm(f"{TESTED}:{name}") for name in ("GreedyForNeeds", "DecodeMass")}
