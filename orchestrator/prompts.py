"""Prompts: the tokenizer's own chat template, rendered once per problem, as text, token ids and hash.

`tokenizers` and Jinja give what `AutoTokenizer.apply_chat_template` gives (tested) in a tenth of a second instead of
importing torch; a checkpoint without tokenizer.json goes through transformers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.errors import UserError
from orchestrator.models import ResolvedModel
from orchestrator.tasks.base import Message

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as the model receives it. sha256 is over the text's UTF-8; len(token_ids) is P, the protected region."""

    text: str
    token_ids: tuple[int, ...]
    sha256: str


class _Tokenizer(Protocol):
    def render(self, messages: Sequence[Message]) -> str: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


class Renderer:
    """Renders for one model; equal messages are rendered once."""

    def __init__(self, model: ResolvedModel) -> None:
        self._model = model
        self._cache: dict[str, Rendered] = {}

    def render(self, messages: Sequence[Message]) -> Rendered:
        """Prompt with the opening of the assistant's turn. Raises UserError: no chat template, or one that refuses."""
        key = json.dumps([dict(message) for message in messages], sort_keys=True)
        if key not in self._cache:
            try:
                text = self._tokenizer.render(messages)
            except jinja2.TemplateError as error:
                raise UserError(
                    f"model {self._model.path_on_disk}: its chat template refuses this prompt: {error}. "
                    f"The prompt begins: {messages[0]['content'][:80]!r}."
                ) from error
            digest = hashlib.sha256(text.encode()).hexdigest()
            self._cache[key] = Rendered(text, tuple(self._tokenizer.encode(text)), digest)
        return self._cache[key]

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; no special token is added."""
        return self._tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids; special tokens leave none."""
        return self._tokenizer.decode(token_ids)

    def __len__(self) -> int:
        """Number of prompts rendered so far."""
        return len(self._cache)

    @cached_property
    def _tokenizer(self) -> _Tokenizer:
        directory = self._model.path_on_disk
        if (directory / "tokenizer.json").is_file():
            return _Light(directory)
        return _Transformers(directory)


class _Light:
    """tokenizer.json and the chat template, without transformers."""

    def __init__(self, directory: Path) -> None:
        # tokenizers takes a share of a second to import, which commands that render nothing should not pay
        from tokenizers import Tokenizer  # noqa: PLC0415

        self._backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._backend.no_truncation()
        self._backend.no_padding()
        config = _read_optional(directory / "tokenizer_config.json")
        self._special = _special_tokens(config, _read_optional(directory / "special_tokens_map.json"))
        self._template = _environment().from_string(_template_text(directory, config))

    def render(self, messages: Sequence[Message]) -> str:
        return self._template.render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **self._special,
        )

    def encode(self, text: str) -> list[int]:
        # the template writes the special tokens itself
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text


class _Transformers:
    """Slow tokenizers (sentencepiece files and the like)."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415 - imports torch

        self._tokenizer = AutoTokenizer.from_pretrained(directory)

    def render(self, messages: Sequence[Message]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, tokenize=False
        )
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text


def _template_text(directory: Path, config: dict[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    if not isinstance(template, str):
        raise UserError(
            f"model {directory} has no chat template (chat_template.jinja or tokenizer_config.json); take the instruct "
            "version of the model, or add chat_template.jinja to a copy of the checkpoint."
        )
    return template


def _special_tokens(*configs: dict[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for config in configs:
        for key in _SPECIAL:
            value = config.get(key)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str):
                tokens.setdefault(key, value)
    return tokens


def _environment() -> ImmutableSandboxedEnvironment:
    """Jinja as transformers sets it up, less `strftime_now`: a date in a prompt would be another prompt every day."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; for a prompt it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the name and type Jinja reads

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value: object, *, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes HTML characters
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _read_optional(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
