"""Grading committed chunks: reads generations, asks the task, commits grades. Needs no engine, and runs any time after.

A chunk's grades are one file under the grader's name and version, so grading again with a newer grader touches nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from orchestrator.chunks import ChunkId
from orchestrator.store.paths import NO_JUDGE, GraderKey
from orchestrator.store.rows import grade_row
from orchestrator.store.writer import Store
from orchestrator.tasks.base import Grade, Problem, Task, Verdict

_CHUNKS = 16
# A program runs for seconds on each of its tests, an answer is judged in a millisecond.
_SLOW = frozenset({"program"})
_COLUMNS = ("row_id", "cell_id", "problem_id", "sample", "text", "finish_reason")


@dataclass(frozen=True, slots=True)
class GradeWork:
    """Committed chunks of one task, each with the problems of its block, gold answers included."""

    store: str
    task: Task
    chunks: tuple[tuple[ChunkId, tuple[Problem, ...]], ...]


@dataclass(frozen=True, slots=True)
class Graded:
    """What became of a GradeWork: every chunk graded, or why not (then all of them may be tried again)."""

    work: GradeWork
    error: str = ""


def grader_key(task: Task) -> GraderKey:
    """Under which name a task's grades are stored."""
    return GraderKey(task.grader, task.grader_version, getattr(task, "judge", NO_JUDGE))


def grade(work: GradeWork) -> Graded:
    """Grade every chunk; never raises: a grader's defect must not end a campaign."""
    try:
        store = Store.open(work.store, create=False)
        for chunk, problems in work.chunks:
            _grade_chunk(store, work.task, chunk, problems)
    except Exception as error:  # reported to the driver, which names it in its summary
        return Graded(work, f"{type(error).__name__}: {error}")
    return Graded(work)


def _grade_chunk(store: Store, task: Task, chunk: ChunkId, problems: tuple[Problem, ...]) -> None:
    by_id = {problem.problem_id: problem for problem in problems}
    key = grader_key(task)
    rows = []
    for row in store.rows(chunk, _COLUMNS):
        problem = by_id.get(row["problem_id"])
        rows.append(grade_row(row, key, _grade_row(task, problem, row), datetime.now(UTC)))
    store.commit_grades(key, chunk, rows)


def _grade_row(task: Task, problem: Problem | None, row: Mapping[str, Any]) -> Grade:
    if problem is None:
        return Grade(Verdict.UNGRADED, None, "problem is not in the task", 0.0)
    if row["text"] is None:
        return Grade(Verdict.ERROR, None, "generation without text", 0.0)
    try:
        return task.grade(problem, row["text"], row["finish_reason"])
    except Exception as error:  # one odd text must not cost the other rows of its chunk
        return Grade(Verdict.ERROR, None, f"grader raised {type(error).__name__}: {error}", 0.0)


@dataclass(slots=True)
class GradeQueue:
    """Chunks that wait for their grades, in works of a few chunks of one task; a failed work is tried once more.

    locate   gives a chunk's task and the problems of its block
    at_once  works given out and not finished, at most
    """

    store: str
    locate: Callable[[ChunkId], tuple[Task, tuple[Problem, ...]]]
    at_once: int = 2
    errors: list[str] = field(default_factory=list)
    running: int = 0
    _waiting: deque[ChunkId] = field(default_factory=deque)
    _failed: set[ChunkId] = field(default_factory=set)

    @property
    def left(self) -> int:
        """Chunks without a verdict on their grading; those of a running work count as one."""
        return len(self._waiting) + self.running

    def add(self, chunks: Iterable[ChunkId]) -> None:
        """Queue committed chunks."""
        self._waiting.extend(chunks)

    def take(self) -> GradeWork | None:
        """The next work, or None while enough of them run or nothing waits."""
        if self.running >= self.at_once or not self._waiting:
            return None
        task, problems = self.locate(self._waiting[0])
        chunks = [(self._waiting.popleft(), problems)]
        while self._waiting and len(chunks) < (1 if task.grader in _SLOW else _CHUNKS):
            other, problems = self.locate(self._waiting[0])
            if other is not task:
                break
            chunks.append((self._waiting.popleft(), problems))
        self.running += 1
        return GradeWork(self.store, task, tuple(chunks))

    def drop(self) -> None:
        """Forget what waits; running works still finish."""
        self._waiting.clear()

    def finish(self, graded: Graded) -> None:
        """Take in what became of a work."""
        self.running -= 1
        if not graded.error:
            return
        chunks = [chunk for chunk, _ in graded.work.chunks]
        self._waiting.extend(chunk for chunk in chunks if chunk not in self._failed)
        again = [chunk for chunk in chunks if chunk in self._failed]
        if again:
            self.errors.append(f"{len(again)} chunks of {graded.work.task.name} are not graded: {graded.error}")
        self._failed.update(chunks)
