"""Public problem sets: read from a file you have or from the hub, checked field by field, named by their content.

Texts of unclear licence are never packaged. `mini: true` takes a small set of this project's own wording instead, for
trying a job out; its rows have another revision and never mix with the real ones.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq

from orchestrator.cells import fingerprint
from orchestrator.errors import UserError, closest
from orchestrator.store.paths import NO_JUDGE
from orchestrator.tasks.base import Grade, Problem
from orchestrator.tasks.graders import published

MINI_DIR = Path(__file__).parent / "data"
PUBLISHED = "published"
HUB_TIMEOUT = 10.0  # seconds
MATH_INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a hub data set, pinned: repository, file, commit; for the record its configuration and split.

    sha256  of the file at that commit; empty where this project could not learn it
    """

    repo: str
    file: str
    config: str
    split: str
    revision: str
    sha256: str = ""


@dataclass(frozen=True)
class Benchmark:
    """Options.

    data_file  jsonl, json, csv or parquet with the hub's fields, relative to the job
    mini       a small set of this project's own wording instead
    judge      whose rules decide; never part of a cell, since it changes no generation
    """

    data_file: str = field(default="", metadata={"path": True})
    mini: bool = False
    judge: str = NO_JUDGE

    name: ClassVar[str]
    version: ClassVar[int] = 1
    sources: ClassVar[tuple[Source, ...]]
    grader: ClassVar[str]
    grader_version: ClassVar[int]
    instruction: ClassVar[str] = MATH_INSTRUCTION
    samples_default: ClassVar[int]
    keep_published: ClassVar[int | None] = None
    licence: ClassVar[str]
    count: ClassVar[int]
    """Problems in the whole set."""
    content: ClassVar[str] = ""
    """Content hash of the whole set where this project has seen it; another content is then refused."""
    expected_tokens: ClassVar[int]

    judges: ClassVar[tuple[str, ...]] = (NO_JUDGE, PUBLISHED)
    bundle: ClassVar[Mapping[str, Any]] = {"judge": PUBLISHED}
    """Options of `protocol: published`."""

    def __post_init__(self) -> None:
        if self.judge not in self.judges:
            raise UserError(
                f"task '{self.name}': judge '{self.judge}' is unknown; choose from {', '.join(self.judges)}."
                f"{closest(str(self.judge), self.judges)}"
            )
        if self.data_file and self.mini:
            raise UserError(f"task '{self.name}': give either data_file or mini, not both.")
        if self.mini and not (MINI_DIR / f"{self.name}.jsonl").is_file():
            raise UserError(f"task '{self.name}' has no mini set; give data_file.")

    def __getstate__(self) -> dict[str, Any]:
        """Options only: a task travels to graders with every work, and its problems may take gigabytes."""
        return {key: value for key, value in self.__dict__.items() if key != "_items"}

    @property
    def revision(self) -> str:
        """Hash of the ids and golds in order. Raises UserError as `problems` does."""
        items = [[problem.problem_id, problem.gold] for problem in self._items]
        return f"{'mini' if self.mini else 'content'}-{fingerprint(items)}"

    @property
    def prompt_hash(self) -> str:
        return fingerprint({"instruction": self.instruction, "version": self.version})

    @property
    def size(self) -> int:
        """Number of problems. Raises UserError as `problems` does."""
        return len(self._items)

    def problems(self, limit: int | None = None) -> Sequence[Problem]:
        """In the set's own order. Raises UserError: no data, missing field, duplicate, unreadable gold, changed set."""
        return self._items[:limit]

    @staticmethod
    def grade_text(gold: str, text: str, finish_reason: str) -> Grade:
        """This set's rule; only a set that overrides `grade`, as code does, has none."""
        raise NotImplementedError

    def grade(self, problem: Problem, text: str, finish_reason: str) -> Grade:
        """As Task.grade, by the judge."""
        if self.judge == PUBLISHED:
            return published.grade(problem.gold, text, finish_reason)
        return self.grade_text(problem.gold, text, finish_reason)

    def kept(self, row: Mapping[str, Any]) -> bool:
        """Whether a row belongs to the set."""
        return True

    def item(self, row: Mapping[str, Any], place: str) -> Problem:
        """One row as a problem; sets with other fields override it. Raises UserError naming place and field."""
        question, gold = text_field(row, "problem", place), text_field(row, "answer", place)
        return self.build(question, gold, question)

    def build(self, question: str, gold: str, content: str, instruction: str | None = None) -> Problem:
        """A problem named by `content`, with the set's instruction (or another one) behind the question."""
        messages = ({"role": "user", "content": f"{question}\n\n{instruction or self.instruction}"},)
        return Problem(content_id(content), messages, gold)

    def check_gold(self, gold: str) -> bool:
        """Whether the grader can read a gold answer."""
        return bool(gold)

    @cached_property
    def _items(self) -> tuple[Problem, ...]:
        items = [self.item(row, place) for file in self._files() for place, row in read_rows(file) if self.kept(row)]
        if not items:
            raise UserError(f"task '{self.name}': {self.data_file or 'its data'} holds no problem.")
        seen: dict[str, int] = {}
        for number, problem in enumerate(items, 1):
            if (first := seen.setdefault(problem.problem_id, number)) != number:
                raise UserError(f"task '{self.name}': problem {number} repeats problem {first}; remove one of them.")
        bad = [f"problem {n}: {p.gold!r}" for n, p in enumerate(items, 1) if not self.check_gold(p.gold)]
        if bad:
            raise UserError(
                f"task '{self.name}': grader '{self.grader}' cannot read these answers: {'; '.join(bad[:5])}"
                + (f" and {len(bad) - 5} more." if len(bad) > 5 else ".")
            )
        if not self.mini and not self.data_file and len(items) != self.count:
            raise UserError(
                f"task '{self.name}': the hub's files hold {len(items)} problems, the pinned set {self.count}. Give "
                "the set as `data_file`, or run your own as a `jsonl` task."
            )
        if not self.mini and self.content and len(items) == self.count:
            found = fingerprint(sorted([problem.problem_id, problem.gold] for problem in items))
            if found != self.content:
                raise UserError(
                    f"task '{self.name}': these {self.count} problems are not the pinned ones (content {found}, pinned "
                    f"{self.content}). Copies in circulation differ: take the file named in the task's sources, or "
                    "run your own version as a `jsonl` task."
                )
        return tuple(items)

    def _files(self) -> list[Path]:
        if self.mini:
            return [MINI_DIR / f"{self.name}.jsonl"]
        if self.data_file:
            if not Path(self.data_file).is_file():
                raise UserError(
                    f"task '{self.name}': data_file {self.data_file} does not exist; give it "
                    "relative to the job file, or leave it out to take the hub's."
                )
            return [Path(self.data_file)]
        return [hub_file(self.name, source) for source in self.sources]


def content_id(content: str) -> str:
    """16 hex of BLAKE2b over the text that makes a problem what it is."""
    return hashlib.blake2b(content.strip().encode(), digest_size=8).hexdigest()


def text_field(row: Mapping[str, Any], key: str, place: str) -> str:
    """A field as non-empty text. Raises UserError with place, fields and closest match."""
    if key not in row:
        raise UserError(f"{place} has no field '{key}'; its fields: {', '.join(row) or 'none'}.{closest(key, row)}")
    text = str(row[key]).strip() if row[key] is not None else ""
    if not text:
        raise UserError(f"{place}: field '{key}' is empty.")
    return text


def read_rows(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """(place, row) of a jsonl, json, csv or parquet file. Raises UserError for anything else or a broken one."""
    readers: Mapping[str, Callable[[Path], list[Any]]] = {
        ".jsonl": lambda path: [
            json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
        ],
        ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
        ".csv": lambda path: list(csv.DictReader(path.open(encoding="utf-8", newline=""))),
        ".parquet": lambda path: pq.read_table(path).to_pylist(),
    }
    reader = readers.get(file.suffix)
    if reader is None:
        raise UserError(f"{file}: cannot read '{file.suffix}' files; use one of {', '.join(readers)}.")
    try:
        rows = reader(file)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {file}: {error}.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file} must hold a list of objects, one a problem.")
    return [(f"{file} row {number}", row) for number, row in enumerate(rows, 1)]


def _checked(task: str, source: Source, file: Path) -> Path:
    """The file, if it is the pinned one. The cache names large files by their hash, which saves reading gigabytes."""
    if not source.sha256 or file.resolve().name == source.sha256:
        return file
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != source.sha256:
        raise UserError(
            f"task '{task}': {file} has SHA-256 {found}, but {source.repo} at {source.revision[:12]} has "
            f"{source.sha256}. It was changed or cut short: delete it and load it again."
        )
    return file


def hub_file(task: str, source: Source) -> Path:
    """The file from the local hub cache, else from the hub. Raises UserError that says how to go on without it."""
    # huggingface_hub costs half a second that local data need not pay
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    fetch = partial(hf_hub_download, source.repo, source.file, repo_type="dataset", revision=source.revision)
    try:
        return _checked(task, source, Path(fetch(local_files_only=True)))
    except LocalEntryNotFoundError:
        pass
    try:
        HfApi().dataset_info(source.repo, timeout=HUB_TIMEOUT)  # fails fast where a download would retry
        return _checked(task, source, Path(fetch()))
    except UserError:
        raise
    except Exception as error:  # the HTTP library beneath changes with hub versions, and so do its exceptions
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"task '{task}': {source.repo} ({source.file}) is not in the local hub cache and the hub did not give it: "
            f"{reason}. Accept the data set's terms on its page and `hf auth login` if it is gated; or put the file "
            "here and give `data_file: PATH`; or try the job with `mini: true`."
        ) from error
