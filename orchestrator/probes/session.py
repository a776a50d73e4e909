"""A probe job on this machine: its model as an engine, and the model's own full-cache answers as filler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import models
from orchestrator.arms import points
from orchestrator.errors import UserError
from orchestrator.models import ResolvedModel
from orchestrator.probes.instances import TextGrammar
from orchestrator.probes.job import FillerSpec, ProbeJob
from orchestrator.probes.reasoner import STEPS, Answered, ReasonerGrammar
from orchestrator.probes.study import Results, Study
from orchestrator.prompts import Renderer
from orchestrator.store.reader import Reader
from orchestrator.tasks import registry
from orchestrator.tasks.base import Problem
from orchestrator.tasks.reasoner import reference_text
from policies.base import Replacer

REASONER = "embedded:reasoner"
STUB = "Think step by step, and keep track of every variable and number that you meet."
ANSWER_TOKENS = 1500
WALKS = 32

Advance = Callable[[str], None]


@dataclass(slots=True)
class Session:
    """An engine with its tokenizer. Loading it takes seconds to minutes."""

    job: ProbeJob
    model: ResolvedModel
    engine: Any
    make_script: Callable[..., Any]

    @classmethod
    def open(cls, job: ProbeJob, device: str) -> Session:
        """Load the model. Raises UserError: no such model, or policies that have no events."""
        for index, entry in enumerate(job.arms.policies):
            for arm in points(entry, job.arms, ("arms", "policies", index)):
                if isinstance(arm.policy, Replacer):
                    raise UserError(f"probes cannot run '{arm.name}': it has no events. Leave it out of arms.policies.")
        resolved = models.resolve(job.model.path, job.model.revision)
        # brings torch and transformers
        from workers.transformers_engine.probe import ProbeEngine  # noqa: PLC0415
        from workers.transformers_engine.probe_batch import Script  # noqa: PLC0415

        engine = ProbeEngine(str(resolved.path_on_disk), resolved.revision, job.model.dtype.value, device)
        return cls(job, resolved, engine, Script)

    def study(self, advance: Advance, after_each: Callable[[Results], None]) -> Results:
        """Make the filler, then run every probe. Raises UserError where text and layout do not fit."""
        try:
            grammar = self._reasoner(advance) if self.job.model.path == REASONER else self._text(advance)
            return Study(self.job, self.engine, grammar, self.make_script, advance).run(after_each)
        except ValueError as error:
            raise UserError(f"probe job '{self.job.name}': {error}.") from error

    def _reasoner(self, advance: Advance) -> ReasonerGrammar:
        wanted = self.job.search + self.job.instances
        kinds = {probe.kind for probe in self.job.probes}
        walks = self._answers("reasoner_w", min(WALKS, wanted), advance) if kinds - {"two_facts"} else []
        programs = self._answers("reasoner_p", wanted, advance) if "two_facts" in kinds else []
        return ReasonerGrammar(Renderer(self.model).encode, walks, programs, self.job.seed)

    def _answers(self, task: str, count: int, advance: Advance) -> list[Answered]:
        """Its own greedy answers. Nearly all are the reference, which one forward shows; the others are generated."""
        renderer = Renderer(self.model)
        answered = []
        for problem in registry.get(task, steps=f"{STEPS}", recap=8).problems(count):
            prompt, text = renderer.render(problem.messages).token_ids, reference_text(problem)
            tokens = tuple(renderer.encode(text))
            if self.engine.follows(prompt, tokens):
                answered.append(Answered(prompt, tokens, text))
            else:
                answered += self._generate([problem], ANSWER_TOKENS, advance)
            advance("filler")
        return answered

    def _text(self, advance: Advance) -> TextGrammar:
        filler: FillerSpec = self.job.filler
        renderer = Renderer(self.model)
        stub = renderer.render(({"role": "user", "content": STUB},)).token_ids
        texts = self._stored(filler.store) if filler.store else self._written(filler, advance)
        return TextGrammar(renderer.encode, stub, texts, self.job.seed)

    def _stored(self, store: str) -> list[str]:
        """Texts of the model's full-cache rows, thinking tags left out. Raises UserError where the store has none."""
        reader = Reader(Path(store))
        cells = reader.cells()
        mine = cells[(cells["policy"] == "full") & (cells["model_revision"] == self.model.revision)]
        texts = reader.rows(("row_id", "text"), mine["cell_id"].tolist()).sort_values("row_id")["text"].tolist()
        if not texts:
            raise UserError(f"filler.store {store}: no full-cache row of {self.job.model.path} at this revision.")
        return [text.replace("<think>", "").replace("</think>", "") for text in texts]

    def _written(self, filler: FillerSpec, advance: Advance) -> list[str]:
        task = registry.get(filler.task, **({"mini": True} if filler.mini else {}))
        answers = self._generate(task.problems(filler.problems), filler.max_tokens, advance)
        return [each.text for each in answers]

    def _generate(self, problems: Sequence[Problem], most: int, advance: Advance) -> list[Answered]:
        """Full-cache greedy answers, prompts of equal length together."""
        renderer = Renderer(self.model)
        prompts = [renderer.render(problem.messages).token_ids for problem in problems]
        answered: list[Answered] = []
        for length in sorted({len(prompt) for prompt in prompts}):
            alike = [prompt for prompt in prompts if len(prompt) == length]
            for start in range(0, len(alike), WALKS):
                part = alike[start : start + WALKS]
                for prompt, answer in zip(part, self.engine.generate(part, most), strict=True):
                    answered.append(Answered(prompt, answer, renderer.decode(answer)))
                advance("filler")
        return answered
