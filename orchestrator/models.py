"""Models: from what a job file says to a checkpoint on disk, its content revision and the facts planning needs.

Reads config.json itself: no torch, no transformers, and no network unless a hub id is not cached.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator import smollm2
from orchestrator.errors import UserError, closest

EMBEDDED_DIR = Path(orchestrator.__file__).resolve().parents[1] / "jobs" / "models"
SMOLLM2 = "smollm2"
_PREFIX = "embedded:"
_CONTENT = (
    "*.safetensors",
    "*.bin",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "*.jinja",
    "vocab.json",
    "merges.txt",
    "*.model",
)
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
HUB_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A checkpoint on disk.

    path_on_disk  directory with config.json, weights and tokenizer
    revision      hub commit, or `blake2b:` and 16 hex of the contents of the files that decide what the model says
    window        positions the model was made for, tokens
    sampling      temperature, top_p, top_k, min_p as the checkpoint's own generation config recommends (those it names)
    notes         what a reader of results must know about this model
    """

    path_on_disk: Path
    revision: str
    architecture: str
    head_size: int
    n_layers: int
    n_kv_heads: int
    window: int
    sampling: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def embedded_names() -> tuple[str, ...]:
    """Models that need no hub: `embedded:NAME`."""
    packaged = sorted(path.parent.name for path in EMBEDDED_DIR.glob("*/config.json"))
    return (*packaged, SMOLLM2)


@cache
def resolve(path: str, revision: str | None = None) -> ResolvedModel:
    """Find a model: `embedded:NAME`, a local directory, or a hub id (optionally pinned to a revision).

    Raises UserError: unknown embedded name, missing extra, directory without config or weights, hub id neither cached
    nor reachable.
    """
    if path.startswith(_PREFIX):
        return _from_directory(path, _embedded(path.removeprefix(_PREFIX)))
    local = Path(path).expanduser()
    if local.is_dir():
        return _from_directory(path, local.resolve())
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise UserError(
            f"model '{path}': no such directory. Give a directory with config.json and *.safetensors, a hub id "
            f"'owner/name', or one of {', '.join(_PREFIX + name for name in embedded_names())}."
        )
    directory = _hub_snapshot(path, revision)
    return _from_directory(path, directory, revision=directory.name)


def _embedded(name: str) -> Path:
    if name == SMOLLM2:
        return smollm2.checkpoint()
    directory = EMBEDDED_DIR / name
    if not (directory / "config.json").is_file():
        known = ", ".join(_PREFIX + each for each in embedded_names())
        hint = closest(_PREFIX + name, [_PREFIX + each for each in embedded_names()])
        raise UserError(f"model '{_PREFIX}{name}' is not packaged; known: {known}.{hint}")
    return directory


def _from_directory(path: str, directory: Path, revision: str | None = None) -> ResolvedModel:
    config = _read_json(directory / "config.json", path)
    if not any(directory.glob("*.safetensors")) and not any(directory.glob("*.bin")):
        raise UserError(f"model '{path}': {directory} holds config.json but no *.safetensors; copy the weights there.")
    text = config.get("text_config", config)
    names = config.get("architectures") or [None]
    n_heads = _number(text, "num_attention_heads", path)
    notes_file = directory / "evictbench.json"
    notes = _read_json(notes_file, path).get("notes", ()) if notes_file.is_file() else ()
    return ResolvedModel(
        path_on_disk=directory,
        revision=revision or f"blake2b:{_content_hash(directory)}",
        architecture=names[0] or str(config.get("model_type", "unknown")),
        head_size=text.get("head_dim") or _number(text, "hidden_size", path) // n_heads,
        n_layers=_number(text, "num_hidden_layers", path),
        n_kv_heads=text.get("num_key_value_heads") or n_heads,
        window=_number(text, "max_position_embeddings", path),
        sampling=_sampling(directory, path),
        notes=tuple(notes),
    )


def _sampling(directory: Path, path: str) -> Mapping[str, float]:
    file = directory / "generation_config.json"
    if not file.is_file():
        return {}
    recommended = _read_json(file, path)
    return {key: recommended[key] for key in ("temperature", "top_p", "top_k", "min_p") if key in recommended}


def _read_json(file: Path, path: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"model '{path}': cannot read {file}: {error}.") from error
    return value


def _number(config: Mapping[str, Any], key: str, path: str) -> int:
    value = config.get(key)
    if not isinstance(value, int):
        raise UserError(f"model '{path}': config.json has no {key}; only decoder models with standard attention fit.")
    return value


def _content_hash(directory: Path) -> str:
    """Over names and bytes of the files that decide what the model says; notes and read-me files do not."""
    digest = hashlib.blake2b(digest_size=8)
    files = {file.name: file for pattern in _CONTENT for file in directory.glob(pattern) if file.is_file()}
    for name, file in sorted(files.items()):
        with file.open("rb") as stream:
            digest.update(f"{name}\0".encode() + hashlib.file_digest(stream, "blake2b").digest())
    return digest.hexdigest()


def _hub_snapshot(repo: str, revision: str | None) -> Path:
    # huggingface_hub costs half a second and no job on local models needs it
    from huggingface_hub import HfApi, snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        HfApi().model_info(repo, revision=revision, timeout=HUB_TIMEOUT)  # fails fast where a download would retry
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # the HTTP library beneath changes with hub versions, and so do its exceptions
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model '{repo}' is neither a local directory nor in the local hub cache, and the hub did not give it: "
            f"{reason}. Where the hub can be reached run `hf download {repo}`, or copy the checkpoint here and give "
            "its directory as `path:`; gated models need `hf auth login` first."
        ) from error
