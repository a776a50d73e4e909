"""HMMT February and November 2025 as one column of 60 problems; answers in LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from orchestrator.tasks.benchmark import Benchmark, Source
from orchestrator.tasks.graders import math
from orchestrator.tasks.registry import register


@register
@dataclass(frozen=True)
class Hmmt(Benchmark):
    """Published at keep 4096 with 16 samples a problem. February 2026 has 33 problems and is not part of it."""

    name: ClassVar[str] = "hmmt"
    sources = (
        Source(
            "MathArena/hmmt_feb_2025",
            "data/train-00000-of-00001.parquet",
            "default",
            "train",
            "6fdc4277120810ff75aa22d2d5489b91f7a262a1",
        ),
        Source(
            "MathArena/hmmt_nov_2025",
            "data/train-00000-of-00001.parquet",
            "default",
            "train",
            "118dbfb45c4c9467c672268ed55166642897aa46",
        ),
    )
    grader: ClassVar[str] = "math"
    grader_version: ClassVar[int] = math.VERSION
    grade_text = staticmethod(math.grade)
    samples_default: ClassVar[int] = 16
    keep_published: ClassVar[int | None] = 4096
    count: ClassVar[int] = 60
    expected_tokens: ClassVar[int] = 16384
    licence: ClassVar[str] = "CC BY-NC-SA 4.0 (MathArena); problems belong to HMMT; never packaged"
