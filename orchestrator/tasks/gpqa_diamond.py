"""GPQA-Diamond: graduate-level multiple choice. Gated: read with your own accepted access, never stored here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from orchestrator.cells import fingerprint
from orchestrator.errors import UserError, closest
from orchestrator.tasks.base import Problem
from orchestrator.tasks.benchmark import PUBLISHED, Benchmark, Source, text_field
from orchestrator.tasks.graders import letters
from orchestrator.tasks.registry import register

LETTERS = "ABCD"
ORDERS = ("keyed", "published")
BOXED = "Please reason step by step, and put the letter of your final choice within \\boxed{}."


@register
@dataclass(frozen=True)
class GpqaDiamond(Benchmark):
    """Option `order`: "keyed" (a pure function of the item) or "published" (the right one is A, as in the paper)."""

    order: str = "keyed"

    bundle: ClassVar[Mapping[str, Any]] = {"judge": PUBLISHED, "order": "published"}
    name: ClassVar[str] = "gpqa_diamond"
    sources = (
        Source(
            "Idavidrein/gpqa",
            "gpqa_diamond.csv",
            "gpqa_diamond",
            "train",
            "633f5ee89ab8ad4522a9f850766b73f62147ffdd",
            "41d1213cd7a4998605a26c2798500652572007161b3a92817ba46b35befcd305",
        ),
    )
    grader: ClassVar[str] = "letter"
    grader_version: ClassVar[int] = letters.VERSION
    grade_text = staticmethod(letters.grade)
    instruction: ClassVar[str] = (
        "Please reason step by step, and show your choice in the `answer` field with only the choice letter, "
        'e.g., "answer": "C".'
    )
    samples_default: ClassVar[int] = 4
    keep_published: ClassVar[int | None] = 2048
    count: ClassVar[int] = 198
    expected_tokens: ClassVar[int] = 8192
    licence: ClassVar[str] = "CC BY 4.0, gated: examples must not be revealed in plain text; never packaged"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ORDERS:
            raise UserError(
                f"task '{self.name}': order '{self.order}' is unknown; choose from {', '.join(ORDERS)}."
                f"{closest(str(self.order), ORDERS)}"
            )

    @property
    def prompt_hash(self) -> str:
        return fingerprint({"instruction": self._instruction, "version": self.version, "order": self.order})

    @property
    def _instruction(self) -> str:
        # The authors' judge reads boxes only.
        return BOXED if self.order == "published" else self.instruction

    def item(self, row: Mapping[str, Any], place: str) -> Problem:
        question = text_field(row, "Question", place)
        right = text_field(row, "Correct Answer", place)
        options = [right, *(text_field(row, f"Incorrect Answer {n}", place) for n in (1, 2, 3))]
        if len(set(options)) != len(LETTERS):
            raise UserError(f"{place}: two options are equal.")
        if self.order == "keyed":
            options.sort(key=lambda option: hashlib.sha256(f"{question}\0{option}".encode()).digest())
        listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=True))
        return self.build(f"{question}\n\n{listed}", LETTERS[options.index(right)], question, self._instruction)
