"""MATH-500: competition problems in seven subjects; answers in LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from orchestrator.tasks.benchmark import Benchmark, Source
from orchestrator.tasks.graders import math
from orchestrator.tasks.registry import register


@register
@dataclass(frozen=True)
class Math500(Benchmark):
    """Published at keep 1024 with 2 samples a problem."""

    name: ClassVar[str] = "math500"
    sources = (
        Source(
            "HuggingFaceH4/MATH-500",
            "test.jsonl",
            "default",
            "test",
            "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
        ),
    )
    grader: ClassVar[str] = "math"
    grader_version: ClassVar[int] = math.VERSION
    grade_text = staticmethod(math.grade)
    samples_default: ClassVar[int] = 2
    keep_published: ClassVar[int | None] = 1024
    count: ClassVar[int] = 500
    content: ClassVar[str] = "ec140e874686b0d3"
    expected_tokens: ClassVar[int] = 4096
    licence: ClassVar[str] = (
        "MIT by the authors (MATH, PRM800K); disputed by the source of many problems; never packaged"
    )
