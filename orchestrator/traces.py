"""A user's own traces: prompts and answers from a file, cut into tokens, with the facts that answers come back to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError, closest
from orchestrator.models import ResolvedModel

PROMPT_FIELDS = ("prompt", "question", "problem", "input")
ANSWER_FIELDS = ("output", "completion", "response", "answer", "text", "generation")
MESSAGES = "messages"

# What text repeats word for word because it matters: numbers of three digits or more, decimals, and names that only
# code and mathematics use (with an underscore, a digit or an inner capital).
_FACT = re.compile(
    r"(?<![\w.])(?:\d+\.\d+|\d{3,})(?![\w.]*\w)"
    r"|\b(?=\w*[a-zA-Z])(?:[a-zA-Z]+\d\w*|\w+_\w+|[a-z]+[A-Z]\w*)\b"
)
# Without a tokenizer: words in pieces of at most six letters, digits and marks on their own, about as real ones cut.
_PIECE = re.compile(r"[^\W\d]{1,6}|\d|[^\w\s]|\s{2,}")

Starts = Callable[[str], list[int]]
"""Text to the character at which each of its tokens begins."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and its answer, in tokens.

    reuses  (source, use) positions, counted from the first prompt token: facts that the answer states once, as far as
            one can tell from the text, and comes back to
    stated  facts that the answer states, each once however often it returns
    """

    prompt: int
    output: int
    reuses: tuple[tuple[int, int], ...]
    stated: int

    @property
    def total(self) -> int:
        """Prompt and answer."""
        return self.prompt + self.output


def read(file: Path, starts: Starts, fields: tuple[str, str] | None = None) -> list[Trace]:
    """Traces of a JSON Lines file; `fields` name prompt and answer. Raises UserError naming line, field and choices."""
    return [_trace(*texts, starts) for texts in _texts(file, fields)]


def estimated(text: str) -> list[int]:
    """Token starts without a tokenizer: an estimate."""
    return [match.start() for match in _PIECE.finditer(text)]


def tokenized(model: ResolvedModel) -> Starts:
    """Token starts by a model's own tokenizer. Raises UserError where it has no tokenizer.json."""
    file = model.path_on_disk / "tokenizer.json"
    if not file.is_file():
        raise UserError(f"model {model.path_on_disk} has no tokenizer.json; leave --model out for an estimate.")
    # a share of a second that an estimate need not pay
    from tokenizers import Tokenizer  # noqa: PLC0415

    backend = Tokenizer.from_file(str(file))
    backend.no_truncation()

    def starts(text: str) -> list[int]:
        return [start for start, _ in backend.encode(text, add_special_tokens=False).offsets]

    return starts


def _trace(prompt: str, output: str, starts: Starts) -> Trace:
    before, inside = starts(prompt), starts(output)
    known = set(_FACT.findall(prompt))
    first: dict[str, int] = {}
    seen: dict[str, int] = {}
    reuses = []
    place = 0
    for match in _FACT.finditer(output):
        while place + 1 < len(inside) and inside[place + 1] <= match.start():
            place += 1
        fact = match.group()
        if fact in known:
            continue
        if seen.get(fact) == 1:
            reuses.append((len(before) + first[fact], len(before) + place))
        first.setdefault(fact, place)
        seen[fact] = seen.get(fact, 0) + 1
    return Trace(len(before), len(inside), tuple(reuses), len(seen))


def _texts(file: Path, fields: tuple[str, str] | None) -> Iterator[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        siblings = [str(path) for path in file.parent.glob("*.jsonl")] if file.parent.is_dir() else []
        raise UserError(f"{file}: no such file.{closest(str(file), siblings)} Name a JSON Lines file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}. Name a UTF-8 JSON Lines file.") from error
    found = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            found += 1
            yield _pair(_row(line, f"{file}:{number}"), f"{file}:{number}", fields)
    if not found:
        raise UserError(f"{file}: holds no trace; write one JSON object a line, with a prompt and an answer.")


def _row(line: str, place: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place}: not JSON: {error}. Write one object a line.") from error
    if not isinstance(row, dict):
        raise UserError(f"{place}: a {type(row).__name__}, not an object. Write one object a line.")
    return row


def _pair(row: Mapping[str, Any], place: str, fields: tuple[str, str] | None) -> tuple[str, str]:
    if MESSAGES in row and fields is None:
        return _conversation(row[MESSAGES], place)
    prompt, answer = fields or (None, None)
    return _text(row, place, "prompt", PROMPT_FIELDS, prompt), _text(row, place, "answer", ANSWER_FIELDS, answer)


def _conversation(messages: Any, place: str) -> tuple[str, str]:
    """Everything before the last answer is the prompt; the chat template's own tokens are not counted."""
    fits = isinstance(messages, list) and all(isinstance(each, dict) for each in messages)
    if not fits or not messages or messages[-1].get("role") != "assistant":
        raise UserError(f"{place}: messages must be a list of objects that ends with one of role 'assistant'.")
    contents = [each.get("content") for each in messages]
    if not all(isinstance(content, str) for content in contents):
        raise UserError(f"{place}: every message needs a text in 'content'.")
    return "\n".join(contents[:-1]), contents[-1]


def _text(row: Mapping[str, Any], place: str, what: str, usual: Sequence[str], named: str | None) -> str:
    name = named or next((name for name in usual if name in row), None)
    if name is None or name not in row:
        hint = closest(named or what, row)
        asked = f"no field '{named}'" if named else f"no {what} field ({_listed(usual)})"
        raise UserError(f"{place}: {asked}; its fields: {_listed(row) or 'none'}.{hint} Name both with --fields.")
    value = row[name]
    if not isinstance(value, str) or not value:
        raise UserError(f"{place}: field '{name}' is {json.dumps(value)[:40]}; it must be a text.")
    return value


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
