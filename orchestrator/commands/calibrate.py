"""`evictbench calibrate`: measure the query statistics that TriAttention scores with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from orchestrator import leaks, models
from orchestrator.errors import UserError
from policies.calibration import BESIDE_MODEL, CalibrationError, ModelFacts

TOKENS = 100_000
LENGTH = 4096


FEWEST_TOKENS, ENOUGH_TOKENS = 64, 10_000


@click.command()
@click.argument("model")
@click.option(
    "--texts",
    type=click.Path(path_type=Path),
    required=True,
    help="FILE.jsonl with a `text` in each line, or any other file as one text.",
)
@click.option("--out", type=click.Path(path_type=Path), help="File to write; default beside MODEL, where jobs find it.")
@click.option("--tokens", type=click.IntRange(min=1), default=TOKENS, show_default=True, help="Tokens to read at most.")
@click.option("--length", type=click.IntRange(min=1), default=LENGTH, show_default=True, help="Tokens of one piece.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
def command(model: str, texts: Path, out: Path | None, tokens: int, length: int, device: str) -> None:
    """Measure the query statistics of MODEL, named as in a job, on texts like those that it writes.

    Texts that hold a question of a built-in task are refused: nothing is calibrated on what it is judged by.
    """
    corpus = read_texts(texts)
    resolved = models.resolve(model)
    refuse_questions(texts, corpus)
    pieces = _pieces(resolved.path_on_disk, corpus, min(length, resolved.window), tokens)
    _judge_size(texts, sum(map(len, pieces)))
    # brings torch and transformers
    from workers.transformers_engine.calibrate import calibrate  # noqa: PLC0415

    target = out or resolved.path_on_disk / BESIDE_MODEL
    digest = hashlib.blake2b("\0".join(corpus).encode(), digest_size=8).hexdigest()
    try:
        facts = ModelFacts.read(resolved.path_on_disk, resolved.revision)
        with click.progressbar(length=sum(map(len, pieces)), label="tokens", show_pos=True) as bar:
            made = calibrate(resolved.path_on_disk, facts, _shown(pieces, bar), f"blake2b:{digest}", device)
        fingerprint = made.save(target)
    except (CalibrationError, KeyError, OSError, RuntimeError) as error:
        raise UserError(f"model '{model}' cannot be calibrated: {error}") from error
    click.echo(
        f"{target}: {made.meta.tokens:,} tokens of {len(corpus)} texts, fingerprint {fingerprint}, "
        f"median concentration of a band |E q| / E|q| = {float(np.median(made.resultant)):.3f}"
    )


def read_texts(file: Path) -> list[str]:
    """The texts of a file. Raises UserError with the line that is no text."""
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(f"{file}: {reason}. Name a text file, or a .jsonl file with a `text` in each line.") from error
    if file.suffix != ".jsonl":
        return [content]
    texts = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (ValueError, TypeError, KeyError):
            text = None
        if not isinstance(text, str):
            raise UserError(f'{file}:{number}: not a JSON object with a text field "text".')
        texts.append(text)
    return texts


def refuse_questions(file: Path, texts: Sequence[str]) -> None:
    """Say what the texts were compared with. Raises UserError for a text with a question of a built-in task."""
    questions = leaks.built_in()
    for number, text in enumerate(texts, 1):
        found = questions.found_in(text)
        if found is not None:
            raise UserError(
                f"{file}: text {number} holds the question {found}. Statistics measured on evaluation questions would "
                "favour the policy that uses them; take it out."
            )
    compared = ", ".join(f"{name} {count}" for name, count in questions.compared.items())
    click.echo(f"the texts hold no question of {compared}", err=True)
    if questions.absent:
        click.echo(
            f"whole sets that are not on this machine were not compared: {', '.join(questions.absent)}", err=True
        )


def _judge_size(file: Path, tokens: int) -> None:
    if tokens < FEWEST_TOKENS:
        raise UserError(
            f"{file} holds {tokens} tokens; statistics need at least {FEWEST_TOKENS}, and are steady from about "
            f"{ENOUGH_TOKENS:,} on."
        )
    if tokens < ENOUGH_TOKENS:
        click.echo(f"only {tokens:,} tokens: statistics are steady from about {ENOUGH_TOKENS:,} on", err=True)


def _pieces(directory: Path, texts: Sequence[str], length: int, limit: int) -> list[list[int]]:
    """Token ids, cut to pieces that the model can read, `limit` tokens in all. Raises UserError when there are none."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - brings torch

    tokenizer = AutoTokenizer.from_pretrained(directory)
    pieces: list[list[int]] = []
    for text in texts:
        ids = tokenizer.encode(text)
        for start in range(0, len(ids), length):
            piece = ids[start : min(start + length, len(ids), start + limit)]
            limit -= len(piece)
            if piece:
                pieces.append(piece)
    if not pieces:
        raise UserError("the file holds no tokens. Give texts like those that the model writes.")
    return pieces


def _shown(pieces: Sequence[Sequence[int]], bar: Any) -> Iterator[Sequence[int]]:
    for piece in pieces:
        yield piece
        bar.update(len(piece))
