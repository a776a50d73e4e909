"""The chart script that Streamlit ships (Vega and its embedder, BSD licensed), made into one piece for an HTML file.

It is a set of ES modules that import each other by relative path, which a page opened from a disk may not load. An
import map of `data:` addresses carries them inside the page.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import streamlit

from orchestrator.errors import UserError

_ENTRY = "loadVegaEmbed.*.js"
_IMPORT = re.compile(r"""((?:from|import)\s*\(?\s*)(["'`])\./([A-Za-z0-9._-]+\.js)\2""")
_PREFIX = "evictbench-charts/"


def import_map() -> str:
    """JSON of an import map; `evictbench-charts/embed` is the module with the embedder as `embed`.

    Raises UserError where this Streamlit has no such script.
    """
    folder = Path(streamlit.__file__).parent / "static" / "static" / "js"
    entries = sorted(folder.glob(_ENTRY))
    found = re.search(r"import\(`\./(embed\.[A-Za-z0-9_-]+\.js)`\)", entries[0].read_text()) if entries else None
    if found is None:
        raise UserError(
            f"Streamlit {streamlit.__version__} has no chart script where 1.67.0 has it ({folder}/{_ENTRY}). Install "
            "the pinned packages (make venv) and export again."
        )
    modules: dict[str, str] = {}
    _collect(folder, found[1], modules)
    imports = {f"{_PREFIX}{name}": _address(text) for name, text in modules.items()}
    return json.dumps({"imports": {**imports, f"{_PREFIX}embed": _address(_entry(found[1]))}})


def _entry(embed: str) -> str:
    """The bundler keeps the module's names in a namespace object called `n`."""
    return f'import {{ n }} from "{_PREFIX}{embed}";\nexport const embed = n.default;\n'


def _collect(folder: Path, name: str, modules: dict[str, str]) -> None:
    """Add a module and all that it imports, with their relative imports turned into names of the map."""
    if name in modules:
        return
    text = (folder / name).read_text(encoding="utf-8")
    modules[name] = _IMPORT.sub(lambda match: f"{match[1]}{match[2]}{_PREFIX}{match[3]}{match[2]}", text)
    for match in _IMPORT.finditer(text):
        _collect(folder, match[3], modules)


def _address(text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"
