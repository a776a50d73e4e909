"""Identity: what names a cell and seeds a row, by content alone."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cells import Cell, ModelRef, PolicyRef, SamplingRef, TaskRef, canonical_json
from orchestrator.grid import expand
from orchestrator.seeds import eviction_seed, sample_seed
from orchestrator.spec import JobSpec
from orchestrator.tests.machines import Machine, job_text
from policies import registry
from policies.budget import Budget, Overflow, Protection

CELL = Cell(
    model=ModelRef("embedded:reasoner", "rev", "bfloat16", 2048),
    task=TaskRef("reasoner_w", 1, "data", "prompt"),
    policy=PolicyRef("random", 1, {"block": 8}),
    budget=Budget(264, 16, 16),
    protection=Protection.PROMPT,
    n_sink=4,
    overflow=Overflow.GROW,
    sampling=SamplingRef(0.6, 0.95, 20, 0.0, 1500),
    protocol="ours",
    sample_base_seed=0,
    eviction_base_seed=0,
)


def ids(text: str) -> list[str]:
    return [cell.cell_id for cell in expand(JobSpec.from_text(text), Machine()).cells]


@settings(deadline=None)
@given(st.permutations(range(9)))
def test_identity_is_stable_under_key_order(order: list[int]) -> None:
    lines = [*job_text().strip().splitlines(), "seeds: {eviction: 0, sampling: 0}", "analysis: {margin_points: 3}"]
    lines = [lines[i] for i in order if i < len(lines)]
    assert len(lines) == 8
    shuffled = ids("\n".join(lines))
    assert shuffled == ids(job_text())


def _variants(value: object) -> list[object]:
    """The same value with one leaf changed, for every leaf."""
    if is_dataclass(value) and not isinstance(value, type):
        return [
            replace(value, **{field.name: variant})
            for field in fields(value)
            for variant in _variants(getattr(value, field.name))
        ]
    match value:
        case Protection():
            return [Protection.SINKS, None]
        case Overflow():
            return [Overflow.REFUSE, None]
        case str():
            return [value + "x"]
        case dict():
            return [{**value, "block": 9}, {**value, "more": 1}, {}]
        case int() | float():
            return [value + 1]
    raise AssertionError(f"no variant for {value!r}")


def test_a_cell_differs_when_any_identity_field_differs() -> None:
    variants = _variants(CELL)
    assert len(variants) > 25
    ids = [variant.cell_id for variant in variants if isinstance(variant, Cell)]
    assert len({CELL.cell_id, *ids}) == len(variants) + 1


def test_the_label_shows_unusual_parameters() -> None:
    assert CELL.label == "reasoner reasoner_w random(block=8) K264 r16 prompt"
    params = {**registry.build("triattention", {}).params(), "per_layer": True, "calibration": "139abe76bcb75e69"}
    scored = replace(CELL, policy=PolicyRef("triattention", 1, params))
    assert scored.arm_label == "triattention(calibration=139abe76,per_layer=True) K264 r16 prompt"


def test_the_id_of_a_cell_is_pinned() -> None:
    """A store outlives a release: an identity that changes by accident orphans its rows."""
    assert CELL.cell_id == "911a523c755c892e"
    assert canonical_json({"b": 1, "a": [1.5, "ü"]}) == '{"a":[1.5,"\\u00fc"],"b":1}'


def test_seeds_are_pinned_and_keep_their_fields_apart() -> None:
    assert sample_seed(0, "reasoner_w", "w-1", 0) == 13399504913189627829
    assert eviction_seed(0, "reasoner_w", "w-1", 0) == 2342646822313240197
    keys = [(0, "t", "p", 0), (1, "t", "p", 0), (0, "tp", "", 0), (0, "", "tp", 0), (0, "t", "p0", 0), (0, "t", "p", 1)]
    seeds = [function(*key) for key in keys for function in (sample_seed, eviction_seed)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
