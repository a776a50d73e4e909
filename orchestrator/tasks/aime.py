"""AIME 2025 and 2026 as one column of 60 problems; answers are integers from 0 to 999."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from orchestrator.tasks.benchmark import Benchmark, Source
from orchestrator.tasks.graders import integers
from orchestrator.tasks.registry import register


@register
@dataclass(frozen=True)
class Aime(Benchmark):
    """Published at keep 4096 with 16 samples a problem; 60 clusters."""

    name: ClassVar[str] = "aime"
    sources = (
        Source(
            "MathArena/aime_2025",
            "data/train-00000-of-00001.parquet",
            "default",
            "train",
            "c94da77eb22bbd6439e62a323bec18493a421302",
            "9f9066ff48ad2e31f9bf1b1ac6d5e80693195f987985f2859f89dd25ffa51c2d",
        ),
        Source(
            "MathArena/aime_2026",
            "data/train-00000-of-00001.parquet",
            "default",
            "train",
            "d2de22f3c656b4f56cf8981212186377d1e23bc3",
            "d91db799651b4cc1f0734f52792a695c9cc60dac342524b3d8e5b2ff31c3e957",
        ),
    )
    grader: ClassVar[str] = "integer"
    grader_version: ClassVar[int] = integers.VERSION
    grade_text = staticmethod(integers.grade)
    samples_default: ClassVar[int] = 16
    keep_published: ClassVar[int | None] = 4096
    count: ClassVar[int] = 60
    expected_tokens: ClassVar[int] = 16384
    licence: ClassVar[str] = "CC BY-NC-SA 4.0 (MathArena); problems belong to the MAA; never packaged"

    def check_gold(self, gold: str) -> bool:
        value = integers.parse(gold)
        return value is not None and 0 <= value <= 999
