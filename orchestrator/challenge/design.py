"""The two jobs of a challenge: a tuning split that the nulls are fitted on, then everything on both splits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.cells import canonical_json
from orchestrator.chunks import BLOCK
from orchestrator.errors import UserError
from orchestrator.replication.arms import GRID_KEEP
from orchestrator.replication.names import TASKS
from orchestrator.tasks import registry as tasks
from policies import registry
from policies.base import Scorer
from policies.methods.permuted_scores import source_of

REASONER = "embedded:reasoner"
REFERENCE = "random"


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a challenge is fought. Lengths in tokens; samples and sampling None: the task's and the model's own.
    options: the task's."""

    model: str
    task: str
    keep: int
    interval: int
    tuning: int
    problems: int
    samples: int | None
    max_model_len: int | None = None
    sampling: Mapping[str, Any] | None = None
    protection: str = "prompt"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def limit(self) -> int:
        """Problems of both splits: the tuning split is the first of the task's pinned order."""
        return self.tuning + self.problems


@dataclass(frozen=True, slots=True)
class Challenger:
    """The policy that is put to the test: a name, or `/absolute/file.py:Class`, and its parameters."""

    policy: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name without its folder."""
        return self.policy.rpartition("/")[2]

    def arm(self) -> dict[str, Any]:
        """As an entry of arms.policies."""
        return {"name": self.policy, "params": dict(self.params)}

    def build(self) -> Scorer:
        """The policy. Raises UserError for one that cannot be built, and for one without scores."""
        try:
            policy = registry.build(self.policy, self.params)
        except ValueError as error:
            raise UserError(str(error)) from error
        if not isinstance(policy, Scorer):
            raise UserError(
                f"'{self.title}' gives no scores, so no null can be matched to it. Challenge with a Scorer."
            )
        return policy


# Problems of the tuning and test splits by default; both are whole blocks.
TUNING, PROBLEMS = 16, 64
_PUBLISHED_KEEPS = {TASKS[name].name: keep for name, keep in GRID_KEEP.items()}
_DEFAULT_TASKS = {REASONER: "reasoner_w"}


def setting(
    model: str,
    task: str | None,
    keep: int | None,
    interval: int | None,
    splits: tuple[int, int] = (TUNING, PROBLEMS),
    samples: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Setting:
    """Fill in what the user left open. Raises UserError where there is nothing to take it from."""
    name = task or _DEFAULT_TASKS.get(model)
    if name is None:
        raise UserError(f"--task is needed for model {model}; tasks: {', '.join(tasks.names())}.")
    tasks.options(name)
    embedded = model == REASONER
    kept = keep or (264 if embedded else _PUBLISHED_KEEPS.get(name))
    if kept is None:
        raise UserError(f"--keep is needed: task '{name}' has no published keep. Try a quarter of the traces' length.")
    tuning, problems = (-(-count // BLOCK) * BLOCK for count in splits)
    return Setting(
        model=model,
        task=name,
        keep=kept,
        interval=interval or (16 if embedded else 64),
        tuning=tuning,
        problems=problems,
        samples=samples or (1 if embedded else None),
        options=options or {},
        max_model_len=2048 if embedded else None,
        sampling={"temperature": 0, "max_tokens": 1500} if embedded else None,
    )


def job_text(name: str, where: Setting, arms: Sequence[Mapping[str, Any] | str], limit: int) -> str:
    """A job file."""
    model = {"path": where.model, **({"max_model_len": where.max_model_len} if where.max_model_len else {})}
    job = {
        "name": name,
        "models": [model],
        "tasks": [{"name": where.task, "limit": limit, **where.options}],
        "arms": {
            "policies": [dict(arm) if isinstance(arm, Mapping) else arm for arm in arms],
            "keep": where.keep,
            "interval": where.interval,
            "protection": where.protection,
        },
        **({"samples": where.samples} if where.samples else {}),
        **({"sampling": dict(where.sampling)} if where.sampling else {}),
        "analysis": {"reference": REFERENCE},
    }
    return yaml.safe_dump(job, sort_keys=False)


def job_name(challenger: Challenger, where: Setting) -> str:
    """`challenge-mine.py-Mine-reasoner-reasoner_w-K264`, within what a job may be called."""
    parts = ("challenge", challenger.title, where.model.rsplit("/", 1)[-1].rsplit(":", 1)[-1], where.task)
    return re.sub(r"[^A-Za-z0-9._-]", "-", "-".join((*parts, f"K{where.keep}")))[:64]


def tuning_name(name: str) -> str:
    """Name of the job of the tuning split alone."""
    return f"{name[:57]}-tuning"


def permuted_arm(challenger: Challenger) -> dict[str, Any]:
    """The challenger's scores, permuted within ages."""
    params = {"policy": challenger.policy, "source": source_of(challenger.policy)}
    if challenger.params:
        params["params_json"] = canonical_json(dict(challenger.params))
    return {"name": "permuted_scores", "params": params}


def matched_arm(survival: Sequence[float], overlap: float, interval: int) -> dict[str, Any]:
    """Random with the challenger's ages and head overlap."""
    shares = [round(float(share), 4) for share in survival]
    return {"name": "matched_age", "params": {"survival": shares, "overlap": round(float(overlap), 3), "r": interval}}


def absolute(policy: str) -> str:
    """`file.py:Class` with the file's absolute path; a name as it is. Raises UserError for a file that is not there."""
    file, colon, attribute = policy.rpartition(":")
    if not colon:
        return policy
    path = Path(file)
    if not path.is_file():
        raise UserError(f"{policy}: there is no file {path.absolute()}. Write file.py:Class.")
    return f"{path.resolve()}:{attribute}"
