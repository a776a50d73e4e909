"""The probe file: which probes on which model, at which budget; jobs/paper/probes_qwen3_4b.yaml is the published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, Strict, ValidationError

from orchestrator import spec_errors
from orchestrator.errors import UserError
from orchestrator.probes.instances import Layout
from orchestrator.spec import Name
from orchestrator.spec_sections import ArmsSpec, ModelSpec, NotNegative, OneOrMore, Positive, Section, Seed
from orchestrator.yaml_source import read

Count = Annotated[int, Strict(), Field(ge=2)]


class FillerSpec(Section):
    """Problems whose full-cache answers fill the space between facts; the reasoner takes its own problems."""

    store: str | None = None
    """A store that holds the model's full-cache rows: their texts are taken, and nothing is generated."""
    task: str = "math500"
    """A task's name."""
    mini: bool = False
    """The task's packaged mini set."""
    problems: Positive = 24
    """First problems of the task."""
    max_tokens: Positive = 4096
    """Tokens of an answer at most."""


class ProbeSpec(Section):
    """One probe. Lengths in tokens of filler."""

    kind: Literal["planted_fact", "two_facts", "passcode", "restated"]
    """planted_fact and two_facts force where facts live; passcode and restated leave it to the policies."""
    lead: NotNegative = 448
    """Before the first statement."""
    distance: Positive = 1536
    """Between the last statement and the question."""
    gap: NotNegative = 256
    """Between two statements, beginning to beginning (two_facts, restated)."""
    times: OneOrMore[Positive] = (1, 2, 3, 4, 5, 6, 7, 8)
    """Statements of the fact (restated)."""

    def layouts(self) -> dict[str, Layout]:
        """Layouts by what distinguishes them in results."""
        match self.kind:
            case "restated":
                return {f"stated {m}x": Layout(self.lead, self.distance, self.gap, m, salient=True) for m in self.times}
            case "two_facts":
                return {"": Layout(self.lead, self.distance, self.gap, facts=2)}
            case _:
                return {"": Layout(self.lead, self.distance, salient=self.kind == "passcode")}


class ProbeJob(Section):
    """One model, one budget, some probes."""

    name: Name
    """Names the results."""
    model: ModelSpec
    """The model; its dtype and revision count, its length does not."""
    instances: Count = 64
    """Instances of every arm."""
    search: Count = 32
    """Further instances, on which heads are ranked; what is reported comes from the others."""
    seed: Seed = 0
    """Base of instances and draws."""
    arms: ArmsSpec
    """Policies of the free probes; forced ones take the first keep and interval, and protect nothing."""
    probes: OneOrMore[ProbeSpec]
    """What is probed."""
    filler: FillerSpec = FillerSpec()
    """Where the text between facts comes from."""
    batch: Positive = 16
    """Instances at once."""

    @classmethod
    def load(cls, path: Path) -> ProbeJob:
        """Read a probe file. Raises UserError that lists every mistake with its place."""
        source = read(path)
        try:
            job = cls.model_validate(source.data, context={"folder": path.parent})
        except ValidationError as error:
            raise UserError(spec_errors.paragraphs(error, source, cls)) from None
        if job.arms.keep is None:
            raise UserError(f"{source.place(('arms',))}: probes need a budget. Add keep (tokens per head).")
        return job
