"""Grading stored generations again: which chunks lack grades of the wanted version, and getting them graded.

Needs neither a model nor a GPU. Grades of a chunk are one file that is created or exists, so however often this is
killed or run at once, every chunk is graded once under a grader's name, judge and version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console

from orchestrator import target
from orchestrator.backend import Backend
from orchestrator.chunks import BLOCK, ChunkId
from orchestrator.driver import Interrupt
from orchestrator.errors import UserError, closest
from orchestrator.grading import Graded, GradeQueue, grader_key
from orchestrator.model_cards import PUBLISHED
from orchestrator.progress import duration
from orchestrator.resources import task_options
from orchestrator.spec import JobSpec
from orchestrator.spec_sections import TaskSpec
from orchestrator.store.paths import GraderKey
from orchestrator.store.writer import Store
from orchestrator.tasks import registry
from orchestrator.tasks.base import Problem, Task

_SAY_SECONDS = 10.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Wish:
    """What to grade again: task names (all when empty), and how.

    version    grader version the caller expects; None takes the installed one
    judge      judge to use instead of the protocol's own
    data_file  file with the problems of the one named task
    again      discard the grades that this version has made, as after mending an answer key
    """

    tasks: tuple[str, ...] = ()
    version: int | None = None
    judge: str | None = None
    data_file: Path | None = None
    again: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Task options that override those of the job."""
        found: dict[str, Any] = {} if self.judge is None else {"judge": self.judge}
        return found | ({} if self.data_file is None else {"data_file": str(self.data_file), "mini": False})


@dataclass(frozen=True, slots=True)
class Batch:
    """One task with the cells that answered it, and what is still to grade."""

    task: Task
    problems: Sequence[Problem]
    key: GraderKey
    cells: tuple[str, ...]
    graded: int
    missing: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True)
class Regrade:
    """Everything that a regrade will do; `again`: after discarding what this version has graded."""

    store: Store
    batches: tuple[Batch, ...]
    again: bool = False

    @property
    def missing(self) -> tuple[ChunkId, ...]:
        """Chunks to grade."""
        return tuple(chunk for batch in self.batches for chunk in batch.missing)


@dataclass(frozen=True, slots=True)
class _Source:
    """A campaign's tasks as its job wrote them, and the folder that their paths are relative to."""

    tasks: tuple[TaskSpec, ...]
    folder: Path


def prepare(path: Path | None, wish: Wish) -> Regrade:
    """Find the rows that `wish` means. Raises UserError: no such task or rows, data missing or changed, other version.

    A task is rebuilt from the job that made the rows; its problems must be those that were answered.
    """
    opened = target.resolve(path)
    store = Store.open(opened.store, create=False)
    campaigns = [c.campaign_id for c in opened.reader.campaigns() if opened.campaign in (None, c.campaign_id)]
    cells: dict[tuple[str, ...], list[str]] = {}
    sources: dict[tuple[str, ...], _Source] = {}
    for name in campaigns:
        source = _source(path, store, name)
        for row in store.campaign(name).plan().to_pylist():
            identity = json.loads(row["identity"])
            ref = tuple(str(identity["task"][key]) for key in ("name", "revision", "prompt_hash"))
            if ref[0] not in registry.names():
                continue  # stand-ins of a scaled job: made to see it run, graded while it ran
            known = cells.setdefault((*ref, str(identity["protocol"])), [])
            if row["cell_id"] not in known:
                known.append(row["cell_id"])
            sources[(*ref, str(identity["protocol"]))] = source
    _check_names(wish, sorted({ref[0] for ref in cells}), opened.store)
    batches = [
        _batch(store, ref, cells[ref], sources[ref], wish) for ref in cells if not wish.tasks or ref[0] in wish.tasks
    ]
    found = tuple(batch for batch in batches if batch is not None)
    if not found:
        raise UserError(f"{opened.store} holds no generation of {', '.join(wish.tasks) or 'any task'} yet.")
    return Regrade(store, found, wish.again)


def _source(path: Path | None, store: Store, campaign: str) -> _Source:
    if path is not None and path.is_file():
        job = JobSpec.load(path)
        return _Source(job.tasks, job.folder)
    tasks = store.campaign(campaign).resolved().get("tasks", [])
    return _Source(tuple(TaskSpec.model_validate(task) for task in tasks), Path())


def _check_names(wish: Wish, stored: Sequence[str], store: Path) -> None:
    for name in wish.tasks:
        if name not in stored:
            known = ", ".join(stored) or "none"
            raise UserError(f"{store} has no rows of task '{name}'; its tasks: {known}.{closest(name, stored)}")
    if wish.data_file is not None and len(wish.tasks) != 1:
        raise UserError("--data-file belongs to one task: name it with --task NAME.")


def _batch(store: Store, ref: tuple[str, ...], cells: list[str], source: _Source, wish: Wish) -> Batch | None:
    committed = store.committed(cells)
    if not committed:
        return None
    task = _task(ref, source, wish)
    if hasattr(task, "ready"):
        task.ready()
    key = grader_key(task)
    if wish.version not in (None, key.version):
        raise UserError(
            f"--grader-version {wish.version}: this evictbench grades {ref[0]} by '{key.grader}' version "
            f"{key.version} and no other. Install the release that has version {wish.version}, or leave the option out."
        )
    graded = set() if wish.again else store.graded(key, cells) & committed
    missing = sorted(committed - graded, key=lambda chunk: (chunk.sample, chunk.block, chunk.cell_id))
    return Batch(task, task.problems(_problems_needed(committed)), key, tuple(cells), len(graded), tuple(missing))


def _problems_needed(chunks: set[ChunkId]) -> int:
    return (max(chunk.block for chunk in chunks) + 1) * BLOCK


def _task(ref: tuple[str, ...], source: _Source, wish: Wish) -> Task:
    name, revision, _, protocol = ref
    written = [spec for spec in source.tasks if spec.name == name] or [TaskSpec(name=name)]
    bundle = registry.published(name) if protocol == PUBLISHED else {}
    found, failures = [], []
    for spec in written:
        options = {**task_options(spec, source.folder), **bundle, **wish.options}
        if wish.data_file is not None and "data_file" not in registry.options(name):
            raise UserError(f"task '{name}' reads no data file of its own; leave --data-file out.")
        try:
            task = registry.get(name, **options)
            if task.revision == revision:
                return task
            found.append(task.revision)
        except UserError as error:
            failures.append(str(error))
    if failures:
        hint = " Name the job file instead of the store, or give the problems with --data-file FILE."
        raise UserError(failures[0] + (hint if not source.folder.parts else ""))
    raise UserError(
        f"rows of task '{name}' answer revision {revision}, but its data here is revision {', '.join(found)}. "
        "Grading them against other problems would be wrong: restore the data, or give it with --data-file FILE."
    )


def drive(work: Regrade, backend: Backend, console: Console, interrupt: Interrupt) -> tuple[str, ...]:
    """Grade what is missing; returns why chunks are left, if any are. An interrupt lets running works finish."""
    if work.again:
        for batch in work.batches:
            work.store.discard_grades(batch.key, batch.missing)
    tasks = {chunk: batch for batch in work.batches for chunk in batch.missing}

    def locate(chunk: ChunkId) -> tuple[Task, tuple[Problem, ...]]:
        batch = tasks[chunk]
        return batch.task, tuple(batch.problems[chunk.block * BLOCK : (chunk.block + 1) * BLOCK])

    # Twice the graders, so that none waits for the next poll.
    queue = GradeQueue(work.store.paths.place, locate, at_once=2 * backend.graders())
    queue.add(work.missing)
    meter = Meter(console, sum(len(locate(chunk)[1]) for chunk in work.missing))
    while queue.left:
        if interrupt.count == 1:
            queue.drop()
        if interrupt.count > 1:
            break
        while (given := queue.take()) is not None:
            backend.grade(given)
        for message in backend.poll(_POLL_SECONDS):
            if isinstance(message, Graded):
                queue.finish(message)
                meter.add(0 if message.error else sum(len(problems) for _, problems in message.work.chunks))
        meter.show()
    meter.show(last=True)
    return tuple(queue.errors)


@dataclass(slots=True)
class Meter:
    """`1,024/8,000 rows, 5,200 rows/s, 0:00:01 left`: in place in a terminal, every ten seconds elsewhere."""

    console: Console
    total: int
    done: int = 0
    _started: float = field(default_factory=time.monotonic)
    _said: float = field(default_factory=time.monotonic)

    def add(self, rows: int) -> None:
        """Rows graded since the last call."""
        self.done += rows

    def show(self, *, last: bool = False) -> None:
        """Say where the work stands, if it is time to."""
        now, live = time.monotonic(), self.console.is_terminal
        if not last and now - self._said < (0.5 if live else _SAY_SECONDS):
            return
        self._said = now
        end = "\r" if live and not last else "\n"
        self.console.print(self.text(now), end=end, markup=False, highlight=False, soft_wrap=True)

    def text(self, now: float) -> str:
        """Rows, rate since the start, and the time that the rest takes at that rate."""
        rate = self.done / max(now - self._started, 1e-9)
        left = f", {duration((self.total - self.done) / rate)} left" if self.done and self.done < self.total else ""
        return f"{self.done:,}/{self.total:,} rows, {rate:,.0f} rows/s{left}"


def changes(store: Store, batch: Batch) -> Iterator[tuple[str, str, int]]:
    """(verdict of the newest other grades, verdict of this version, rows), most rows first, where they differ."""
    others = _files(store, batch, lambda name: name != batch.key.name and name.startswith(f"{batch.key.grader}-"))
    mine = _files(store, batch, lambda name: name == batch.key.name)
    if not others or not mine:
        return
    query = """
        WITH old AS (
            SELECT row_id, verdict FROM read_parquet($others, union_by_name = true)
            QUALIFY row_number() OVER (PARTITION BY row_id ORDER BY grader_version DESC, graded_at DESC) = 1
        )
        SELECT old.verdict, new.verdict, count(*) AS n FROM old
        JOIN read_parquet($mine, union_by_name = true) AS new USING (row_id)
        WHERE old.verdict <> new.verdict GROUP BY ALL ORDER BY n DESC, 1, 2
    """
    with duckdb.connect(":memory:") as connection:
        parameters: Mapping[str, Any] = {"others": others, "mine": mine}
        yield from connection.execute(query, parameters).fetchall()


def _files(store: Store, batch: Batch, wanted: Any) -> list[str]:
    folders = sorted(path for path in store.paths.grades.glob("*") if wanted(path.name))
    return [
        str(file) for folder in folders for cell in batch.cells for file in sorted((folder / cell).glob("s*.parquet"))
    ]
