"""Validation errors of a job file as sentences: file, line, key path, what is wrong, the choices, the next step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.errors import closest
from orchestrator.yaml_source import Loc, Source, key_path

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping (key: value lines)",
    "model_type": "a mapping (key: value lines)",
    "model_attributes_type": "a mapping (key: value lines)",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("greater than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def paragraphs(error: ValidationError, source: Source, model: type[BaseModel]) -> str:
    """One line per mistake, in the order of the file."""
    details = [detail for detail in error.errors(include_url=False) if not _echo(detail, error)]
    found = sorted(
        (source.line(detail["loc"]), index, f"{source.place(detail['loc'])}: {_sentence(detail, model)}")
        for index, detail in enumerate(details)
    )
    return "\n".join(text for _, _, text in found)


def _echo(detail: ErrorDetails, error: ValidationError) -> bool:
    """A list whose entries all failed is also reported as too short, which is not the user's mistake."""
    loc = detail["loc"]
    deeper = (other["loc"] for other in error.errors(include_url=False))
    return detail["type"] == "too_short" and any(len(other) > len(loc) and other[: len(loc)] == loc for other in deeper)


def _sentence(detail: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    value = show(detail["input"])
    match kind:
        case "extra_forbidden":
            known = sorted(_fields_at(model, detail["loc"][:-1]))
            return f"unknown key; keys here: {', '.join(known)}.{closest(str(detail['loc'][-1]), known)}"
        case "missing":
            return "this key is required. jobs/template.yaml explains it."
        case "enum" | "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            return f"{value} is not one of {', '.join(choices)}.{closest(str(detail['input']), choices)}"
        case "value_error":
            return _closed(str(context["error"]))
        case "string_pattern_mismatch":
            return f"{value} must be 1 to 64 letters, digits, '.', '_' or '-' and start with a letter or digit."
        case "too_short" | "string_too_short":
            return "must not be empty. Give at least one value, or remove the key."
        case _ if kind in _WANTED:
            return f"{value} is not {_WANTED[kind]}."
        case _ if kind in _BOUNDS:
            word, key = _BOUNDS[kind]
            return f"{value} is not allowed; it must be {word} {context[key]:g}."
        case _:
            return f"{value}: {_closed(detail['msg'])}"


def show(value: object) -> str:
    """A value as a job file writes it, short enough for a sentence."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"'{value}'" if value.isprintable() else repr(value)
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return str(value)


def _closed(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."


def _fields_at(model: type[BaseModel], loc: Loc) -> tuple[str, ...]:
    """Keys of the model that sits at a key path."""
    for part in loc:
        if isinstance(part, str):
            inner = _model_in(model.model_fields[part].annotation)
            assert inner is not None, f"{key_path(loc)} holds no keys"
            model = inner
    return tuple(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _model_in(argument))), None)
