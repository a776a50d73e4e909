"""YAML with places: every value of a job file keeps its line, and mistakes YAML itself would swallow are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import UserError, closest

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file: plain data, and the 1-based line of every key path in it."""

    path: Path
    text: str
    data: Any
    lines: dict[Loc, int] = field(default_factory=dict)

    def line(self, loc: Loc) -> int:
        """1-based line of a key path, or of its nearest parent that is written in the file."""
        return next((self.lines[loc[:n]] for n in range(len(loc), -1, -1) if loc[:n] in self.lines), 1)

    def place(self, loc: Loc) -> str:
        """`jobs/x.yaml:7: arms.keep[0]`."""
        key = key_path(loc)
        return f"{self.path}:{self.line(loc)}" + (f": {key}" if key else "")


def key_path(loc: Loc) -> str:
    """`("arms", "keep", 0)` -> `arms.keep[0]`."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2: `no` is text, `1e-3` a number, `2026-01-01` and `1:30` text."""


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$", re.IGNORECASE), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$", re.IGNORECASE), ["~", "n", "N", ""]
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?[0-9][0-9_]*\.[0-9]*(?:[eE][-+]?[0-9]+)?$"
        r"|^[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?$"
        r"|^[-+]?[0-9]+[eE][-+]?[0-9]+$"
        r"|^[-+]?\.inf$|^\.nan$"
    ),
    list("-+.0123456789"),
)


def read(path: Path) -> Source:
    """Read and parse one YAML file. Raises UserError for a file that cannot be read or is not one YAML document."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        siblings = [str(path.parent / p.name) for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise UserError(
            f"{path}: no such file.{closest(str(path), siblings)} Name a job file, for example jobs/demo.yaml."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}). Name a job file, for example jobs/demo.yaml."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}). Save the job file as UTF-8.") from None
    return parse(path, text)


def parse(path: Path, text: str) -> Source:
    """Parse one YAML document. Raises UserError for syntax errors, duplicate keys and keys that are not text."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise UserError(f"{path}: the file is empty. Start from jobs/template.yaml, which explains every key.")
        walk = _Walk()
        walk.visit(node, ())
        if walk.problems:
            raise UserError("\n".join(f"{path}:{line}: {message}" for line, message in sorted(walk.problems)))
        return Source(path, text, loader.construct_document(node), walk.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise UserError(f"{where}: not valid YAML: {error.problem}. Check quotes, brackets and indentation.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}.") from None
    finally:
        if loader is not None:
            loader.dispose()


class _Walk:
    """Collects the line of every key path and the keys that YAML would drop or that are not text."""

    def __init__(self) -> None:
        self.lines: dict[Loc, int] = {}
        self.problems: list[tuple[int, str]] = []
        self._open: list[yaml.Node] = []

    def visit(self, node: yaml.Node, loc: Loc) -> None:
        self.lines.setdefault(loc, node.start_mark.line + 1)
        if any(parent is node for parent in self._open):
            self.problems.append((node.start_mark.line + 1, f"{key_path(loc)}: an alias must not contain itself."))
            return
        self._open.append(node)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*loc, index))
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._visit_key(key, value, loc)
        self._open.pop()

    def _visit_key(self, key: yaml.Node, value: yaml.Node, loc: Loc) -> None:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            name = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            self.problems.append(
                (line, f"{key_path(loc) or 'the file'}: key {name} is not text. Quote it, or mend the indentation.")
            )
            return
        here = (*loc, key.value)
        if here in self.lines:
            message = f"{key_path(here)}: key written twice, first on line {self.lines[here]}. Remove one of them."
            self.problems.append((line, message))
            return
        self.lines[here] = line
        self.visit(value, here)
