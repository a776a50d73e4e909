"""Sections of the job file: their keys, types, defaults and meaning (contracts.md section 5).

The text under a field is its documentation: docs/job_reference.md and the template's test read it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    Strict,
    StringConstraints,
    ValidationInfo,
    model_validator,
)

from orchestrator.errors import UserError, closest
from orchestrator.tasks import registry as tasks
from policies import registry as policies
from policies.base import Policy
from policies.budget import BudgetMode, Overflow, Protection

T = TypeVar("T")


def _listed(value: Any) -> Any:
    return value if value is None or isinstance(value, list | tuple) else [value]


# Scalars are strict: "264", 264.0 and true are no whole numbers. Lists and names of choices convert.
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Positive = Annotated[int, Strict(), Field(ge=1)]
NotNegative = Annotated[int, Strict(), Field(ge=0)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**63)]


Listed = Annotated[tuple[T, ...], BeforeValidator(_listed)]
OneOrMore = Annotated[Listed[T], Field(min_length=1)]


class Section(BaseModel):
    """A mapping of the job file: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class DType(StrEnum):
    """Number format of weights and cache; part of a cell's identity."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Family(StrEnum):
    """Which comparisons share one correction for multiplicity."""

    MODEL = "model"
    TASK = "task"
    ALL = "all"


class ModelSpec(Section):
    """One model. A bare text is the same as {path: text}."""

    path: str
    """`embedded:reasoner`, `embedded:smollm2`, a directory, or a hub id that is already in the local hub cache."""
    dtype: DType = DType.BFLOAT16
    """Number format of weights and cache."""
    max_model_len: Positive | None = None
    """Longest prompt plus answer in tokens; null takes the model's own window."""
    revision: str | None = None
    """Hub commit to pin; null takes the one in the cache. What it resolves to is part of a cell's identity."""
    calibration: str | None = None
    """Statistics for policies that need them (`evictbench calibrate`), relative to the job file; null takes
    `evictbench/calibration.safetensors` in the model's directory. Its content is part of those cells' identity."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else value


class TaskSpec(Section):
    """One task. A bare text is the same as {name: text}. A task's own options stand beside these keys."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A task's name; an unknown one is refused with the list."""
    limit: Positive | None = None
    """First problems of the task's pinned order; null takes all. Rounded up to whole blocks of 8."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _known(self, info: ValidationInfo) -> TaskSpec:
        try:
            known = tasks.options(self.name)
        except UserError as error:
            raise ValueError(str(error)) from None
        for option in self.options():
            if option not in known:
                choices = ("name", "limit", *known)
                hint = f"keys: {', '.join(choices)}.{closest(option, choices)}"
                raise ValueError(f"task '{self.name}' has no option '{option}'; {hint}")
        return self

    def options(self) -> dict[str, Any]:
        """The task's own options as written."""
        return dict(self.model_extra or {})


class _Settings(Section):
    keep: OneOrMore[Positive] | None = None
    """Cached KV pairs per head right after an event, in tokens, prompt and newest tokens included."""
    interval: OneOrMore[Positive] | None = None
    """Decoded tokens between two events, and the size of the protected recent buffer."""
    protection: OneOrMore[Protection] | None = None
    """First tokens that are never candidates: prompt | sinks | none."""
    budget_mode: BudgetMode | None = None
    """How keep is read. total: prompt and newest tokens inside keep. plus_buffer: keep + interval after an event.
    total_no_recent: the newest tokens are candidates too."""
    overflow: Overflow | None = None
    """A prompt that does not fit keep. grow: every arm gets prompt + recent. per_arm: only arms that protect it.
    published: protect fewer prompt tokens. refuse: such a prompt makes the cell infeasible."""
    n_sink: NotNegative | None = None
    """Tokens protected by `sinks`; under `prompt` at least this many."""


class ArmSpec(_Settings):
    """One policy with its settings, which override the common ones. A bare text is the same as {name: text}."""

    name: str
    """A policy's name, or `file.py:Class` relative to the job file."""
    params: dict[str, Any] = Field(default_factory=dict)
    """The policy's own parameters; an unknown or impossible one is refused with the choices."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    _policy: Policy = PrivateAttr()
    _reference: str = PrivateAttr()

    @model_validator(mode="after")
    def _build(self, info: ValidationInfo) -> ArmSpec:
        # PolicyError is a ValueError: it names the value, the choices and the closest match.
        self._reference = policy_reference(self.name, (info.context or {}).get("folder", Path()))
        self._policy = policies.build(self._reference, self.params)
        if not self._policy.evicts:
            extra = [key for key in _Settings.model_fields if getattr(self, key) is not None]
            if extra:
                raise ValueError(f"policy '{self.name}' never evicts, so it takes no {extra[0]}. Remove it here.")
        return self

    @property
    def policy(self) -> Policy:
        """The policy with its parameters."""
        return self._policy

    @property
    def label(self) -> str:
        """The policy's name in rows and reports: `file.py:Class` without its folder."""
        return self.name.rpartition("/")[2]

    @property
    def reference(self) -> str:
        """What policies.registry.build takes: the name, or `/absolute/file.py:Class`."""
        return self._reference


class IncludeSpec(ArmSpec):
    """An arm beside the grid, on all models and tasks or on those named."""

    model: OneOrMore[str] | None = None
    """Model paths of this job; null means all."""
    task: OneOrMore[str] | None = None
    """Task names of this job; null means all."""


class ExcludeSpec(Section):
    """Grid points to leave out: those that match every key written here. One value or a list for each."""

    model: OneOrMore[str] | None = None
    """Model paths of this job."""
    task: OneOrMore[str] | None = None
    """Task names of this job."""
    policy: OneOrMore[str] | None = None
    """Policy names as written in arms."""
    keep: OneOrMore[Positive] | None = None
    """Values of keep as written in arms."""
    interval: OneOrMore[Positive] | None = None
    """Values of interval."""
    protection: OneOrMore[Protection] | None = None
    """Values of protection."""


class ArmsSpec(Section):
    """The compared arms: the product of policies, keeps, intervals and protections."""

    policies: OneOrMore[ArmSpec]
    """Names, or mappings {name, params, keep, interval, protection, budget_mode, overflow, n_sink}."""
    keep: OneOrMore[Positive] | None = None
    """Cached KV pairs per head right after an event, in tokens, prompt and newest tokens included."""
    interval: OneOrMore[Positive] = (64,)
    """Decoded tokens between two events, and the size of the protected recent buffer."""
    protection: OneOrMore[Protection] = (Protection.PROMPT,)
    """First tokens that are never candidates: prompt | sinks | none."""
    budget_mode: BudgetMode = BudgetMode.TOTAL
    """How keep is read. total: prompt and newest tokens inside keep. plus_buffer: keep + interval after an event.
    total_no_recent: the newest tokens are candidates too."""
    overflow: Overflow = Overflow.GROW
    """A prompt that does not fit keep. grow: every arm gets prompt + recent. per_arm: only arms that protect it.
    published: protect fewer prompt tokens. refuse: such a prompt makes the cell infeasible."""
    n_sink: NotNegative = 4
    """Tokens protected by `sinks`; under `prompt` at least this many."""


class SamplesSpec(Section):
    """Samples per problem. A bare number is the same as {min: number, max: number}."""

    min: Positive
    """Samples before the first look."""
    max: Positive
    """Samples at most."""
    until_width: Annotated[Number, Field(gt=0)] | None = None
    """Stop when every interval of a (model, task) is narrower than this, in points."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "max": value}
        if isinstance(value, dict | cls):
            return value
        raise ValueError(f"{value!r} is neither a number nor {{min, max, until_width}}.")

    @property
    def adaptive(self) -> bool:
        """Whether the number of samples depends on what is seen."""
        return self.min != self.max or self.until_width is not None


class SamplingSpec(Section):
    """How tokens are drawn; the same for every arm. What is left out comes from each model's card."""

    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    """0 is greedy; null takes the model's card, else its generation config."""
    max_tokens: Positive | None = None
    """Generated tokens at most; longest prompt + max_tokens must fit max_model_len. null takes the model's card; a
    request then gets what its prompt leaves of max_model_len, if that is less."""
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Nucleus; 1 is off. null: the card, else the generation config, else off."""
    top_k: NotNegative | None = None
    """Candidates per token; 0 is off. null: as top_p."""
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Candidates need this share of the largest probability; 0 is off. null: as top_p."""


class SeedsSpec(Section):
    """Base seeds. Neither depends on the policy, so two arms share their text until the first eviction."""

    sampling: Seed = 0
    """Base of the sampling seeds."""
    eviction: Seed = 0
    """Base of the eviction draws."""


class AnalysisSpec(Section):
    """What the report compares; none of it changes a generation."""

    reference: str = "random"
    """Policy that every other arm is compared with, at the same model, task, keep and interval."""
    margin_points: Annotated[Number, Field(gt=0, lt=100)] = 2.0
    """Margin of the equivalence test, in points of accuracy."""
    looks: Listed[Positive] = ()
    """Samples after which interim results are looked at; the levels are spent accordingly."""
    family: Family = Family.MODEL
    """Comparisons that share one correction for multiplicity: those of one model | task | all."""


class EngineSection(Section):
    """The inference engine; execution only, never part of a cell's identity."""

    kind: Literal["vllm", "transformers", "simulated"] = "vllm"
    """vllm | transformers | simulated (scheduler tests only; its rows are kept apart)."""
    max_num_seqs: Positive = 64
    """Requests decoded at once."""
    block_size: Positive = 32
    """Tokens per KV block."""
    pool_blocks: Positive | None = None
    """KV blocks of the pool; null lets the engine decide from memory."""
    enforce_eager: Flag = False
    """No CUDA graphs."""


class ResourcesSpec(Section):
    """What one engine occupies."""

    tp: Positive = 1
    """Tensor-parallel GPUs; must divide the model's KV heads."""
    pp: Positive = 1
    """Pipeline stages."""
    nodes: Positive = 1
    """Machines that one engine spans, tp x pp GPUs in equal parts; 1 keeps it inside one machine, which is faster."""
    gpu: str = "any"
    """GPU kind by node label, for example H200."""


class BudgetSpec(Section):
    """What the campaign may spend."""

    gpu_hours: Annotated[Number, Field(gt=0)] | None = None
    """GPU-hours at most; null is no limit."""
    dollars: Annotated[Number, Field(gt=0)] | None = None
    """Money at most, at the rate of resources.gpu; null is no limit."""


class ExecutionSpec(Section):
    """Where rows go and what they may cost; never part of a cell's identity."""

    store: Annotated[str, StringConstraints(min_length=1)] = "./store"
    """Store directory, relative to where the command is run, or a bucket: s3://BUCKET/PREFIX (docs/store.md)."""
    budget: BudgetSpec = BudgetSpec()
    """Limits of the campaign."""
    rates: dict[str, Annotated[Number, Field(ge=0)]] = Field(default_factory=dict)
    """Price of one GPU-hour by GPU kind, for the cost estimate and budget.dollars."""

    def hours(self, gpu: str) -> float | None:
        """GPU-hours that may be spent, by whichever limit is reached first; None is no limit."""
        dollars = self.budget.dollars
        limits = [self.budget.gpu_hours, None if dollars is None else dollars / self.rates[gpu]]
        return min((limit for limit in limits if limit is not None), default=None)


def policy_reference(name: str, folder: Path) -> str:
    """A policy's name as it is, or `file.py:Class` with the file taken relative to `folder`."""
    file, colon, attribute = name.rpartition(":")
    return f"{(folder / file).resolve()}:{attribute}" if colon and file.endswith(".py") else name
