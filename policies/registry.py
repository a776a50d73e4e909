"""Policies by name: built-ins, installed packages (entry points) and files of the user; there is no list.

Standard library only, so that a job is validated without torch. Discovery happens at first use.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import policies.methods
from policies.base import Policy

ENTRY_POINTS = "evictbench.policies"

_HEADS = "it gives each head a number of slots of its own"
_LAYERS = "it gives each layer a number of slots of its own"
_UNEQUAL = {
    "adakv": (_HEADS, "arXiv 2407.11550"),
    "adasnapkv": (_HEADS, "arXiv 2407.11550"),
    "criticaladakv": (_HEADS, "arXiv 2502.03805"),
    "duoattention": ("it keeps everything in some heads and a window in others", "arXiv 2410.10819"),
    "fastgen": ("it chooses another rule for each head", "arXiv 2310.01801"),
    "headkv": (_HEADS, "arXiv 2410.19258"),
    "kvzip": ("it ranks the slots of all heads together", "arXiv 2505.23416"),
    "pyramidkv": (_LAYERS, "arXiv 2406.02069"),
    "razorattention": ("it keeps everything in some heads and a window in others", "arXiv 2407.15891"),
    "squeezeattention": (_LAYERS, "arXiv 2404.04793"),
}
"""Published methods that this package cannot hold: normalised name -> (why, source)."""

_CLASSES: dict[str, type[Policy]] = {}
P = TypeVar("P", bound=type[Policy])


class PolicyError(ValueError):
    """A policy or parameter that does not exist or cannot be used; one line with value, choices and closest match."""


def register(cls: P) -> P:
    """Class decorator: the policy is known as `cls.name`.

    Raises PolicyError when the class is no frozen dataclass, has no name, or its name is taken by another class.
    """
    _check(cls)
    if not cls.name or ":" in cls.name:
        raise PolicyError(f"{cls.__module__}.{cls.__qualname__}: name {cls.name!r} must be a text without ':'.")
    known = _CLASSES.setdefault(cls.name, cls)
    if known is not cls:
        raise PolicyError(
            f"policy name '{cls.name}' is used by {known.__module__}.{known.__qualname__} and by "
            f"{cls.__module__}.{cls.__qualname__}; rename one."
        )
    return cls


def names() -> tuple[str, ...]:
    """Every known policy, sorted."""
    _discover()
    return tuple(sorted(_CLASSES))


def get(name: str) -> type[Policy]:
    """The class of a name or of a `file.py:Class` reference. Raises PolicyError."""
    if ":" in name:
        return load(name)
    _discover()
    if name not in _CLASSES:
        _refuse_unequal(name)
        raise PolicyError(f"unknown policy '{name}'; known: {', '.join(names())}.{_closest(name, _CLASSES)}")
    return _CLASSES[name]


def build(name: str, params: Mapping[str, Any]) -> Policy:
    """A policy from its name (or `file.py:Class`) and its parameters.

    Raises PolicyError for an unknown policy, an unknown, missing or wrongly typed parameter, or one that the class
    itself refuses. A whole number given for a fraction becomes a float, so that 1 and 1.0 are one cell.
    """
    cls = get(name)
    declared = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in params:
        if key not in declared:
            listed = ", ".join(declared) or "none"
            raise PolicyError(
                f"policy '{name}' has no parameter '{key}'; parameters: {listed}.{_closest(key, declared)}"
            )
    for key, field in declared.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if key not in params and not optional:
            raise PolicyError(f"policy '{name}' needs the parameter '{key}'; add it to params.")
    hints = typing.get_type_hints(cls)
    values = {key: _typed(f"parameter '{key}' of policy '{name}'", value, hints[key]) for key, value in params.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"policy '{name}': {error}") from error


def _refuse_unequal(name: str) -> None:
    found = _UNEQUAL.get("".join(letter for letter in name.lower() if letter.isalnum()))
    if found:
        raise PolicyError(
            f"policy '{name}' ({found[1]}) cannot run here: {found[0]}, and all heads and layers of a request share "
            f"one cached length. Known: {', '.join(names())}."
        )


def load(reference: str) -> type[Policy]:
    """The class of `file.py:Class`. Raises PolicyError when the file or class is missing or is no policy."""
    path, _, attribute = reference.rpartition(":")
    if not path.endswith(".py") or not attribute:
        raise PolicyError(f"'{reference}' is not a policy name nor file.py:Class; known names: {', '.join(names())}.")
    file = Path(path).resolve()
    if not file.is_file():
        raise PolicyError(f"policy '{reference}': the file {file} does not exist.")
    found = vars(_module(file))
    cls = found.get(attribute)
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        own = [
            key
            for key, value in found.items()
            if isinstance(value, type) and issubclass(value, Policy) and value.__module__ == found["__name__"]
        ]
        listed = ", ".join(own) or "none"
        hint = _closest(attribute, own)
        raise PolicyError(f"policy '{reference}': no policy class '{attribute}' in {file}; classes: {listed}.{hint}")
    _check(cls)
    return cls


@cache
def _module(file: Path) -> ModuleType:
    name = f"evictbench_policy_{hashlib.blake2b(str(file).encode(), digest_size=8).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses and pickle look a class's module up here
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise PolicyError(f"policy file {file}: {type(error).__name__}: {error}".replace("\n", " ")) from error
    return module


@cache
def _discover() -> None:
    for module in pkgutil.iter_modules(policies.methods.__path__):
        importlib.import_module(f"{policies.methods.__name__}.{module.name}")
    for point in entry_points(group=ENTRY_POINTS):
        try:
            cls = point.load()
        except Exception as error:
            raise PolicyError(
                f"installed policy '{point.name}' ({point.value}) cannot be imported: {error}. Fix or uninstall it."
            ) from error
        register(cls)


def _check(cls: Any) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise PolicyError(f"{cls!r} is no policies.base.Policy class.")
    # Python itself refuses a thawed subclass; an undecorated one would silently lose its parameters.
    if "__dataclass_params__" not in vars(cls):
        raise PolicyError(
            f"{cls.__module__}.{cls.__qualname__} is no frozen dataclass; write @dataclass(frozen=True) above it."
        )
    if not cls.equal_counts:
        raise PolicyError(
            f"{cls.__module__}.{cls.__qualname__} keeps unequal numbers of slots (equal_counts is False); all heads "
            f"and layers of a request share one cached length. Score slots and let select.py count them."
        )


def _typed(place: str, value: Any, hint: Any) -> Any:
    """The value as its declared type; only plain types are checked (bool is no number)."""
    if hint is float and type(value) is int:
        return float(value)
    if hint in (bool, int, float, str) and type(value) is not hint:
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise PolicyError(f"{place} is {value!r}; it must be {kinds[hint]}.")
    return value


def _closest(value: str, known: Iterable[str]) -> str:
    match = difflib.get_close_matches(value, list(known), n=1)
    return f" Did you mean '{match[0]}'?" if match else ""
