"""Tasks by name: every module of this package is imported once and registers what it defines; there is no list."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import orchestrator.tasks
from orchestrator.errors import UserError, closest
from orchestrator.tasks.base import Task

_TASKS: dict[str, type] = {}
T = TypeVar("T", bound=type)


def register(cls: T) -> T:
    """Class decorator: the task's key is `cls.name`, its options are the dataclass fields."""
    name = cls.name  # type: ignore[attr-defined]
    known = _TASKS.setdefault(name, cls)
    assert known is cls, f"task {name!r} is defined by {known.__module__} and by {cls.__module__}"
    return cls


def names() -> tuple[str, ...]:
    """Every known task, sorted."""
    _discover()
    return tuple(sorted(_TASKS))


def options(name: str) -> tuple[str, ...]:
    """Option names of a task. Raises UserError for an unknown task."""
    return tuple(field.name for field in _fields(name))


def path_options(name: str) -> tuple[str, ...]:
    """Options that hold a path, which a job file means relative to itself. Raises UserError for an unknown task."""
    return tuple(field.name for field in _fields(name) if field.metadata.get("path"))


def grader(name: str) -> str:
    """Name of a task's grading rule, without building the task. Raises UserError for an unknown task."""
    _fields(name)
    rule: str = _TASKS[name].grader  # type: ignore[attr-defined]
    return rule


def published(name: str) -> Mapping[str, Any]:
    """Options under which a task is the one of the published protocol. Raises UserError for an unknown task."""
    _fields(name)
    return getattr(_TASKS[name], "bundle", {})


def get(name: str, /, **values: Any) -> Task:
    """Build a task from its options. Raises UserError naming value, choices and the closest match."""
    known = options(name)
    for option in values:
        if option not in known:
            listed = ", ".join(known) or "none"
            raise UserError(f"task '{name}' has no option '{option}'; options: {listed}.{closest(option, known)}")
    missing = [
        field.name
        for field in _fields(name)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    for option in missing:
        if option not in values:
            raise UserError(
                f"task '{name}' needs the option '{option}'; add it beside the task's name in the job file."
            )
    task: Task = _TASKS[name](**values)
    return task


def _fields(name: str) -> tuple[dataclasses.Field[Any], ...]:
    _discover()
    if name not in _TASKS:
        raise UserError(f"unknown task '{name}'; known: {', '.join(names())}.{closest(name, _TASKS)}")
    return tuple(field for field in dataclasses.fields(_TASKS[name]) if field.init)


@cache
def _discover() -> None:
    for module in pkgutil.iter_modules(orchestrator.tasks.__path__):
        if not module.ispkg:
            importlib.import_module(f"orchestrator.tasks.{module.name}")
