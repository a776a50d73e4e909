"""TriAttention: the form on cached keys equals the paper's on keys before the rotary embedding; the frame around it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies import calibration
from policies.calibration import Calibration, CalibrationError, Meta, ModelFacts
from policies.draws import Draw
from policies.methods.triattention import TriAttention
from policies.scoring.triattention import event_weights, head_scores, normalized, reference_scores
from policies.select import select
from policies.view import CacheView

L, H_Q, H, D, S = 3, 4, 2, 12, 40
FACTS = ModelFacts("blake2b:00", L, H_Q, H, D, '{"rope_theta": 10000.0, "rope_type": "default"}')


def statistics(rotary_dim: int = D, pairing: str = "half", scaling: float = 1.0) -> Calibration:
    rng = np.random.default_rng(7)
    center = rng.normal(size=(2, L, H_Q, D // 2)).astype(np.float32)
    frequencies = np.zeros(D // 2)
    frequencies[: rotary_dim // 2] = 10_000.0 ** (-2 * np.arange(rotary_dim // 2) / rotary_dim)
    meta = Meta(FACTS.revision, FACTS.rope, scaling, pairing, H, D, rotary_dim, tokens=100, corpus="blake2b:11")
    abs_mean = np.hypot(*center) + rng.random((L, H_Q, D // 2)).astype(np.float32)
    return Calibration(center[0], center[1], abs_mean.astype(np.float32), frequencies, meta)


def rotated(keys: torch.Tensor, positions: torch.Tensor, made_for: Calibration) -> torch.Tensor:
    """Rotary embedding by its definition: a rotation matrix per pair of dimensions; keys [..., S, D] in fp64."""
    result = keys.clone()
    scale = made_for.meta.attention_scaling
    for band, omega in enumerate(made_for.frequencies[: made_for.meta.rotary_dim // 2]):
        x, y = (int(part[band]) for part in made_for.bands())
        angle = positions * omega
        result[..., x] = scale * (keys[..., x] * angle.cos() - keys[..., y] * angle.sin())
        result[..., y] = scale * (keys[..., x] * angle.sin() + keys[..., y] * angle.cos())
    return result


def view_of(keys: torch.Tensor, made_for: Calibration, **fields: Any) -> CacheView:
    layers = tuple(range(keys.shape[0]))
    draw = Draw(1, 0, layers, (0, 1))
    facts: dict[str, Any] = {"prot": 5, "recent": 8, "n_select": 12, "t": 90, "layers": layers, "heads": (0, 1)}
    shape = (keys.shape[0], keys.shape[1], keys.shape[2])
    return CacheView(shape=shape, draw=draw, keys=keys, calibration=made_for, **{**facts, **fields})


def keys_before_rotation() -> torch.Tensor:
    return torch.randn(L, H, S, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize(
    "policy",
    [
        TriAttention(),
        TriAttention(aggregation="max"),
        TriAttention(disable_mlr=True, offsets=3),
        TriAttention(disable_trig=True),
    ],
    ids=["mean", "max", "no_mlr", "no_trig"],
)
@pytest.mark.parametrize(
    ("rotary_dim", "pairing", "scaling"), [(12, "half", 1.0), (8, "half", 1.3), (8, "interleaved", 1.0)]
)
def test_form_on_cached_keys_equals_the_papers(
    policy: TriAttention, rotary_dim: int, pairing: str, scaling: float
) -> None:
    """t = 90,000 and gaps in the positions: the slot index appears nowhere."""
    made_for, before, t = statistics(rotary_dim, pairing, scaling), keys_before_rotation(), 90_000
    positions = torch.arange(S) * 7 + 3
    cached = rotated(before, positions, made_for).float()
    weights = event_weights(policy, made_for, [2], t)
    found = head_scores(cached[2], weights)
    for head in range(H_Q):
        wanted = reference_scores(policy, made_for, 2, head, before[2, head // 2], positions, t)
        torch.testing.assert_close(found[head].double(), wanted, atol=2e-4, rtol=1e-5)


def test_one_set_per_head_index_for_all_layers_by_default() -> None:
    keys = keys_before_rotation().float()
    shared = select(TriAttention(), view_of(keys, statistics()))
    assert (shared == shared[:1]).all()
    assert (shared[0, 0] != shared[0, 1]).any()
    own = select(TriAttention(per_layer=True), view_of(keys, statistics()))
    assert (own[0] != own[1]).any()


def test_score_is_mean_over_layers_of_the_groups_best_z_score() -> None:
    keys, made_for = keys_before_rotation().float(), statistics()
    view = view_of(keys, made_for)
    policy = TriAttention()
    expected = torch.zeros(H, S)
    for layer in range(L):
        raw = head_scores(keys[layer], event_weights(policy, made_for, [layer], view.t))
        for head in range(H_Q):
            candidates = raw[head, 5 : S - 8]
            raw[head] = (raw[head] - candidates.mean()) / candidates.std(correction=0)
        expected += torch.maximum(raw[0::2], raw[1::2]) / L
    torch.testing.assert_close(policy.score(view)[1], expected)


def test_a_rank_scores_its_own_heads() -> None:
    """Half of the KV heads with their global numbers: the same scores as in the whole view."""
    keys, made_for = keys_before_rotation().float(), statistics()
    whole = TriAttention().score(view_of(keys, made_for))
    part = TriAttention().score(view_of(keys[:, 1:], made_for, heads=(1,)))
    torch.testing.assert_close(part, whole[:, 1:])


def test_equal_scores_do_not_divide_by_zero() -> None:
    assert torch.equal(normalized(torch.ones(2, 6), 0, 6), torch.zeros(2, 6))


def test_view_without_calibration_is_refused() -> None:
    keys = keys_before_rotation().float()
    with pytest.raises(ValueError, match="no calibration; make one with `evictbench calibrate"):
        TriAttention().score(replace(view_of(keys, statistics()), calibration=None))
    with pytest.raises(ValueError, match="for 3 layers of head size 12; the cache has layers up to 3"):
        TriAttention().score(replace(view_of(keys, statistics()), layers=(1, 2, 3)))
    with pytest.raises(ValueError, match="planned with calibration 12, the engine has 34; plan it again"):
        TriAttention(calibration="12").score(view_of(keys, replace(statistics(), fingerprint="34")))


@pytest.mark.parametrize(
    ("params", "message"), [({"aggregation": "sum"}, "choose mean or max"), ({"offsets": 0}, "1 to")]
)
def test_parameters_out_of_range(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TriAttention(**params)


def test_file_round_trip_and_fingerprint(tmp_path: Path) -> None:
    made = statistics(rotary_dim=8)
    fingerprint = made.save(tmp_path / "a" / "c.safetensors")
    assert made.save(tmp_path / "again.safetensors") == fingerprint
    found = calibration.load(tmp_path / "a" / "c.safetensors", FACTS)
    assert (found.fingerprint, found.meta) == (fingerprint, made.meta)
    for name in ("center_real", "center_imag", "abs_mean", "frequencies"):
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))
    assert replace(made, abs_mean=made.abs_mean * 2).save(tmp_path / "other.safetensors") != fingerprint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 4}, "made for layers 3, the model has 4"),
        ({"query_heads": 8}, "made for query heads 4, the model has 8"),
        ({"kv_heads": 4}, "made for KV heads 2, the model has 4"),
        ({"head_dim": 16}, "made for head size 12, the model has 16"),
        ({"rope": '{"rope_theta": 1000000.0}'}, "made for rotary settings .*10000.0.*, the model has .*1000000.0"),
        ({"revision": "blake2b:01"}, "made for model revision blake2b:00, the model has blake2b:01"),
    ],
)
def test_calibration_of_another_model_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    statistics().save(tmp_path / "c.safetensors")
    with pytest.raises(CalibrationError, match=message):
        calibration.load(tmp_path / "c.safetensors", replace(FACTS, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"abs_mean": np.ones(1, np.float32)}, r"abs_mean is float32 \[1\]"),
        ({"center_real": np.full((L, H_Q, D // 2), np.nan, np.float32)}, "center_real holds NaN"),
        ({"frequencies": np.ones(3)}, "frequencies must be float64 \\[6\\]"),
        ({"meta": replace(statistics().meta, kv_heads=3)}, "3 KV heads do not divide 4"),
        ({"meta": replace(statistics().meta, pairing="odd")}, "pairing 'odd' is unknown"),
    ],
)
def test_damaged_statistics_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """A scalar where a vector belongs once disabled the trigonometric term silently in another implementation."""
    replace(statistics(), **change).save(tmp_path / "c.safetensors")
    with pytest.raises(CalibrationError, match=message):
        calibration.load(tmp_path / "c.safetensors")


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"No such file.*evictbench calibrate MODEL"):
        calibration.load(tmp_path / "c.safetensors")
    (tmp_path / "c.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(CalibrationError, match="not a calibration of this version"):
        calibration.load(tmp_path / "c.safetensors")


def test_facts_of_either_spelling_of_the_rotary_settings() -> None:
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}
    old = ModelFacts.of({**sizes, "rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "r")
    new = ModelFacts.of({**sizes, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0}}, "r")
    assert old == new
    assert (old.head_dim, old.kv_heads) == (16, 4)
    assert ModelFacts.of({**sizes, "rope_theta": 1e6}, "r").rope != old.rope
