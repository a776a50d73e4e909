"""GSM8K test set: grade-school word problems with integer answers, for smoke runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from orchestrator.tasks.base import Problem
from orchestrator.tasks.benchmark import Benchmark, Source, text_field
from orchestrator.tasks.graders import plain
from orchestrator.tasks.registry import register


@register
@dataclass(frozen=True)
class Gsm8k(Benchmark):
    """The hub's field is `question`, copies say `problem`; the answer is what follows `####`, if that is there."""

    name: ClassVar[str] = "gsm8k"
    sources = (
        Source(
            "openai/gsm8k",
            "main/test-00000-of-00001.parquet",
            "main",
            "test",
            "740312add88f781978c0658806c59bc2815b9866",
            "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59",
        ),
    )
    grader: ClassVar[str] = "number"
    grader_version: ClassVar[int] = 2
    grade_text = staticmethod(plain.number)
    samples_default: ClassVar[int] = 1
    count: ClassVar[int] = 1319
    content: ClassVar[str] = "17ae4387d308af15"
    expected_tokens: ClassVar[int] = 1024
    licence: ClassVar[str] = "MIT (OpenAI, 2021)"

    def item(self, row: Mapping[str, Any], place: str) -> Problem:
        question = text_field(row, "problem" if "problem" in row else "question", place)
        gold = text_field(row, "answer", place).rsplit("####", 1)[-1].strip()
        return self.build(question, gold, question)

    def check_gold(self, gold: str) -> bool:
        return plain.parse_number(gold) is not None
