"""Calibration: what the queries of a model look like before the rotary embedding, measured once on other texts.

Per layer, query head and band f (two dimensions that rotate together): the mean complex query q̄ and the mean |q|
(policies.md section 8.2). A file is safetensors with one JSON text as metadata. No torch here: planners check files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

VERSION = 1
PAIRINGS = ("half", "interleaved")
# Not `*.safetensors` beside the weights: vLLM would load it as weights, and the model's content hash would change.
BESIDE_MODEL = Path("evictbench") / "calibration.safetensors"
_KEY = "evictbench"
_STATISTICS = ("abs_mean", "center_real", "center_imag")

Floats = NDArray[np.floating[Any]]


class CalibrationError(ValueError):
    """A calibration that is missing, damaged or made for another model; one line with value, place and next step."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a calibration must agree on with the model it is used for.

    revision  hub commit or content hash; empty where unknown, then not compared
    rope      canonical JSON of the rotary settings of config.json: theta, type and whatever its type needs
    """

    revision: str
    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rope: str

    @classmethod
    def read(cls, directory: Path, revision: str) -> ModelFacts:
        """Facts of a checkpoint on disk, from its config.json. Raises OSError, ValueError or KeyError."""
        return cls.of(json.loads((directory / "config.json").read_text(encoding="utf-8")), revision)

    @classmethod
    def of(cls, config: Mapping[str, Any], revision: str) -> ModelFacts:
        """Facts of a parsed config.json. Raises KeyError for one of a model without standard attention."""
        text = config.get("text_config", config)
        heads = text["num_attention_heads"]
        return cls(
            revision=revision,
            layers=text["num_hidden_layers"],
            query_heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim") or text["hidden_size"] // heads,
            rope=json.dumps(_rope(text), sort_keys=True),
        )


@dataclass(frozen=True, slots=True)
class Meta:
    """Where statistics come from and how to read them.

    model              revision of the model (ModelFacts.revision)
    rope               as ModelFacts.rope
    attention_scaling  factor on cos and sin (YaRN, LongRoPE); queries are stored without it
    pairing            half: dimensions f and f + rotary_dim / 2; interleaved: 2f and 2f + 1
    rotary_dim         rotated dimensions; the rest are bands of frequency 0
    tokens             queries averaged per layer and head
    corpus             `blake2b:` and 16 hex of the texts
    """

    model: str
    rope: str
    attention_scaling: float
    pairing: str
    kv_heads: int
    head_dim: int
    rotary_dim: int
    tokens: int
    corpus: str
    version: int = VERSION


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Statistics of one model; equality is identity, so that an object can key a cache of device tensors.

    center_real, center_imag  E[q] per band, fp32 [L, H_q, D/2]
    abs_mean                  E[|q|] per band, fp32 [L, H_q, D/2]
    frequencies               radians per token of each band, fp64 [D/2]; 0 where dimensions are not rotated
    fingerprint               16 hex of BLAKE2b over the file, the part of a cell's identity
    """

    center_real: Floats
    center_imag: Floats
    abs_mean: Floats
    frequencies: NDArray[np.float64]
    meta: Meta
    fingerprint: str = ""

    @property
    def resultant(self) -> Floats:
        """R = |q̄| / E|q| in [0, 1]: how concentrated a band is; fp32 [L, H_q, D/2], 0 for a band that is always 0."""
        length = np.hypot(self.center_real, self.center_imag)
        return np.divide(length, self.abs_mean, out=np.zeros_like(length), where=self.abs_mean > 0)

    def band_scale(self) -> Floats:
        """Attention scaling per band, fp64 [D/2]: dimensions that are not rotated are not scaled either."""
        scale = np.ones(self.meta.head_dim // 2)
        scale[: self.meta.rotary_dim // 2] = self.meta.attention_scaling
        return scale

    def bands(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Dimensions of the real and of the imaginary part of each band."""
        return band_dims(self.meta.head_dim, self.meta.rotary_dim, self.meta.pairing)

    def save(self, path: Path) -> str:
        """Write the file and return its fingerprint; equal statistics give equal bytes."""
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in (*_STATISTICS, "frequencies")}
        # One metadata key: the format does not fix the order of several.
        content = save_tensors(tensors, metadata={_KEY: json.dumps(asdict(self.meta), sort_keys=True)})
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_bytes(content)
        part.replace(path)
        return _fingerprint(content)


def load(path: Path, model: ModelFacts | None = None) -> Calibration:
    """Read a calibration and check it. Raises CalibrationError: unreadable, damaged, or made for another model."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CalibrationError(
            f"calibration {path}: {error.strerror}; make it with `evictbench calibrate MODEL --texts FILE`."
        ) from error
    try:
        tensors = load_tensors(content)
        meta = _meta(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CalibrationError(
            f"calibration {path}: not a calibration of this version ({type(error).__name__}: {error}); make it again "
            "with `evictbench calibrate`."
        ) from error
    if set(tensors) != {*_STATISTICS, "frequencies"}:
        raise CalibrationError(f"calibration {path}: it holds {', '.join(sorted(tensors))}; make it again.")
    found = Calibration(**tensors, meta=meta, fingerprint=_fingerprint(content))
    _check(path, found)
    if model is not None:
        check_model(path, found, model)
    return found


def check_model(path: Path, calibration: Calibration, model: ModelFacts) -> None:
    """Raises CalibrationError naming the first fact in which calibration and model differ."""
    meta = calibration.meta
    layers, heads = calibration.abs_mean.shape[:2]
    pairs = (
        ("layers", layers, model.layers),
        ("query heads", heads, model.query_heads),
        ("KV heads", meta.kv_heads, model.kv_heads),
        ("head size", meta.head_dim, model.head_dim),
        ("rotary settings", meta.rope, model.rope),
        ("model revision", meta.model, model.revision or meta.model),
    )
    for name, own, wanted in pairs:
        if own != wanted:
            raise CalibrationError(
                f"calibration {path}: made for {name} {own}, the model has {wanted}. Calibrate this model: "
                "`evictbench calibrate MODEL --texts FILE`."
            )


def band_dims(head_dim: int, rotary_dim: int, pairing: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Dimensions of the real and imaginary part of each of the D/2 bands; rotated ones first (class Meta).

    Raises ValueError for an unknown pairing, or for sizes that do not split into pairs.
    """
    if pairing not in PAIRINGS:
        raise ValueError(f"pairing {pairing!r} is unknown; choose {' or '.join(PAIRINGS)}.")
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2 or head_dim % 2:
        raise ValueError(f"rotary size {rotary_dim} of head size {head_dim} does not split into pairs.")
    if pairing == "interleaved":
        even = np.arange(0, head_dim, 2)
        return even, even + 1
    rotated, rest = np.arange(rotary_dim // 2), np.arange((head_dim - rotary_dim) // 2) + rotary_dim
    real = np.concatenate((rotated, rest))
    return real, np.concatenate((rotated + rotary_dim // 2, rest + len(rest)))


def _check(path: Path, found: Calibration) -> None:
    meta, shape = found.meta, found.abs_mean.shape
    try:
        band_dims(meta.head_dim, meta.rotary_dim, meta.pairing)
    except ValueError as error:
        raise CalibrationError(f"calibration {path}: {error}") from error
    for name in _STATISTICS:
        value = getattr(found, name)
        if value.shape != shape or len(shape) != 3 or shape[2] != meta.head_dim // 2 or value.dtype != np.float32:
            raise CalibrationError(
                f"calibration {path}: {name} is {value.dtype} {list(value.shape)}; it must be float32 [layers, query "
                f"heads, {meta.head_dim // 2}]. Make it again."
            )
    if meta.kv_heads < 1 or shape[1] % meta.kv_heads:
        raise CalibrationError(f"calibration {path}: {meta.kv_heads} KV heads do not divide {shape[1]} query heads.")
    if found.frequencies.shape != shape[2:] or found.frequencies.dtype != np.float64:
        raise CalibrationError(f"calibration {path}: frequencies must be float64 [{shape[2]}]. Make it again.")
    for name in (*_STATISTICS, "frequencies"):
        if not np.isfinite(getattr(found, name)).all():
            raise CalibrationError(f"calibration {path}: {name} holds NaN or infinity. Make it again.")


def _meta(content: bytes) -> Meta:
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    values = json.loads(header["__metadata__"][_KEY])
    if values.get("version") != VERSION:
        raise ValueError(f"version {values.get('version')!r}, this program reads {VERSION}")
    if set(values) != {field.name for field in fields(Meta)}:
        raise ValueError(f"metadata {sorted(values)}")
    return Meta(**values)


def _fingerprint(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _rope(text: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings of either spelling (`rope_theta` and `rope_scaling`, or `rope_parameters`), nothing invented."""
    settings = {**(text.get("rope_scaling") or {}), **(text.get("rope_parameters") or {})}
    kind = settings.pop("type", None)
    settings.setdefault("rope_type", kind or "default")
    for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        if text.get(name) is not None:
            settings.setdefault(name, text[name])
    return settings
