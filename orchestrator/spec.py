"""The job file, read and validated (contracts.md section 5; jobs/template.yaml is the guided tour).

Models are frozen and refuse unknown keys. `JobSpec.load` reads a file and reports every mistake in it at once, each
with file, line, key path, choices and next step. Nothing here touches a model, a data set or a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PrivateAttr, StringConstraints, ValidationError

from orchestrator import spec_checks, spec_errors
from orchestrator.errors import UserError
from orchestrator.spec_sections import (
    AnalysisSpec,
    ArmsSpec,
    EngineSection,
    ExcludeSpec,
    ExecutionSpec,
    IncludeSpec,
    Listed,
    ModelSpec,
    OneOrMore,
    ResourcesSpec,
    SamplesSpec,
    SamplingSpec,
    Section,
    SeedsSpec,
    TaskSpec,
)
from orchestrator.yaml_source import Source, parse, read


@dataclass(frozen=True, slots=True)
class Scale:
    """A job in small (orchestrator/scaling.py).

    share    of problems and samples
    lengths  tokens of the embedded model's answers per token of the longest task's
    """

    share: float
    lengths: float


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class JobSpec(Section):
    """One job file: models x tasks x arms, sampled and compared."""

    name: Name
    """Campaign id: letters, digits, `.`, `_`, `-`."""
    models: OneOrMore[ModelSpec]
    """Models to run."""
    tasks: OneOrMore[TaskSpec]
    """Problem sets to run."""
    arms: ArmsSpec
    """Policies and budgets to compare."""
    samples: SamplesSpec | None = None
    """Samples per problem: a number, or {min, max, until_width}; null takes each task's own number (1 when greedy)."""
    sampling: SamplingSpec = SamplingSpec()
    """How tokens are drawn; by default as each model's card recommends."""
    seeds: SeedsSpec = SeedsSpec()
    """Base seeds of sampling and eviction."""
    protocol: Literal["ours", "published"] = "ours"
    """ours, or published: the authors' protocol as one bundle. GPQA answers in their order (the right one is A), boxes
    inside unfinished thoughts count, answers are judged by their rules, programs by theirs (20 s and 4 GiB a test),
    top_k and min_p are off, prompt and answer together have 32,768 tokens. Rows of the two never mix."""
    include: Listed[IncludeSpec] = ()
    """Arms beside the grid."""
    exclude: Listed[ExcludeSpec] = ()
    """Grid points to leave out."""
    analysis: AnalysisSpec = AnalysisSpec()
    """What the report compares."""
    engine: EngineSection = EngineSection()
    """The inference engine."""
    resources: ResourcesSpec = ResourcesSpec()
    """What one engine occupies."""
    execution: ExecutionSpec = ExecutionSpec()
    """Where rows go."""

    _source: Source = PrivateAttr(default_factory=lambda: Source(Path("job.yaml"), "", {}))
    _scale: Scale | None = PrivateAttr(default=None)

    @classmethod
    def load(cls, path: str | Path) -> JobSpec:
        """Read a job file. Raises UserError that lists every mistake with its place."""
        return cls._from_source(read(Path(path)))

    @classmethod
    def from_text(cls, text: str, path: str | Path = "job.yaml") -> JobSpec:
        """A job from text; `path` names it in errors and is the base of relative paths."""
        return cls._from_source(parse(Path(path), text))

    @classmethod
    def _from_source(cls, source: Source) -> JobSpec:
        try:
            job = cls.model_validate(source.data, context={"folder": source.path.parent})
        except ValidationError as error:
            raise UserError(spec_errors.paragraphs(error, source, cls)) from None
        job._source = source
        mistakes = list(spec_checks.contradictions(job))
        if mistakes:
            raise UserError("\n".join(f"{source.place(loc)}: {text}" for loc, text in mistakes))
        return job

    def rescaled(self, data: Mapping[str, Any], scale: Scale) -> JobSpec:
        """This job with other data, marked as scaled; mistakes in it are placed in this job's file."""
        text = f"# scaled: --scale {scale.share:g}\n{self._source.text}"
        job = self._from_source(replace(self._source, text=text, data=data))
        job._scale = scale
        return job

    @property
    def scale(self) -> Scale | None:
        """How this job was scaled down; None for a real one."""
        return self._scale

    @property
    def source(self) -> Source:
        """The file that this job was read from."""
        return self._source

    @property
    def folder(self) -> Path:
        """Folder of the job file: the base of relative policy and data files."""
        return self._source.path.parent

    def place(self, *loc: str | int) -> str:
        """`jobs/x.yaml:7: arms.keep[0]` for error messages."""
        return self._source.place(loc)

    def resolved(self) -> Mapping[str, Any]:
        """Every key with its value, JSON-ready: what a campaign records beside the file itself."""
        return self.model_dump(mode="json")
